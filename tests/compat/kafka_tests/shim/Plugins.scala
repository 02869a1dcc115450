package ottla.shim

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ArrayNode
import org.apache.kafka.common.Configurable
import org.apache.kafka.common.acl.{AccessControlEntry, AccessControlEntryFilter, AclBinding, AclBindingFilter, AclOperation, AclPermissionType}
import org.apache.kafka.common.config.ConfigResource
import org.apache.kafka.common.errors.PolicyViolationException
import org.apache.kafka.common.network.{ClientInformation, ListenerName}
import org.apache.kafka.common.protocol.ApiKeys
import org.apache.kafka.common.requests.{ApiError, RequestContext, RequestHeader}
import org.apache.kafka.common.resource.{PatternType, ResourcePattern, ResourcePatternFilter, ResourceType}
import org.apache.kafka.common.security.auth._
import org.apache.kafka.common.security.plain.PlainAuthenticateCallback
import org.apache.kafka.server.authorizer.{Action, AuthorizationResult, Authorizer}
import org.apache.kafka.server.policy.{AlterConfigPolicy, CreateTopicPolicy}

import java.io.{BufferedReader, InputStreamReader, OutputStreamWriter}
import java.net.{InetAddress, ServerSocket, Socket}
import java.nio.charset.StandardCharsets.UTF_8
import java.security.PrivilegedAction
import java.util
import java.util.Optional
import java.util.concurrent.ConcurrentHashMap
import javax.net.ssl.{SSLPeerUnverifiedException, SSLSession}
import javax.security.auth.Subject
import javax.security.auth.callback.{NameCallback, PasswordCallback}
import javax.security.auth.x500.X500Principal
import javax.security.sasl.SaslServer
import scala.jdk.CollectionConverters._

/** Calls the principal builders, SASL callback handlers, authorizers and policies of tests for the brokers, which cannot
  * load Java classes.
  *
  * Each line of a connection is a JSON list that begins with what is asked. `principal`: class,
  * listener, security protocol, address of the client, name by the rules of the broker, subject of
  * the certificate; the answer is a list, type and name of the principal. `password`: class, user,
  * password; the answer is whether they fit. `login`: class, user; the answer is the password of the
  * broker. `krb5.conf`: the answer is the file that the JVM uses now, or null. `authorize`: class, request, operation,
  * type and name of the resource; the answer is whether it is allowed. A request is a list: listener, security
  * protocol, address of the client, type and name of the principal, key and version of the API, correlation id and
  * client id. `create_acls`: settings file of the broker, request, ACLs; the answer has null, or code and message of
  * an error, for each. `delete_acls`: settings file, request, filters; the answer has a list for each: null or
  * the error, and the ACLs that it matched, each with null or its error. An answer about ACLs comes when the
  * authorizer has completed it. `quotas`: class, settings of the broker; it makes the quota callback of this
  * connection, which `OwnQuotas` asks. An object with `error` says that it failed. `policy`: class, settings of
  * the broker; it makes a policy of this connection. `change`: class, type and name of the resource,
  * its settings; the answer is null, or why the policy rejects the change. `creation`: class, the topic,
  * its numbers of partitions and replicas, replicas by partition, settings; the same answer.
  */
object Plugins {
  private val builders = new ConcurrentHashMap[String, KafkaPrincipalBuilder]
  private val authorizers = new ConcurrentHashMap[String, Authorizer]
  private val ofAcls = new ConcurrentHashMap[String, Authorizer]

  /** The port of the loopback address on which brokers ask. */
  lazy val port: Int = {
    val server = new ServerSocket(0, 100, InetAddress.getLoopbackAddress)
    startThread(while (true) {
      val client = server.accept()
      startThread(serve(client))
    })
    server.getLocalPort
  }

  private def startThread(body: => Unit): Unit = {
    // Some tests count threads, without those of remote calls.
    val thread = new Thread(() => body, "RMI of brokers")
    thread.setDaemon(true)
    thread.start()
  }

  private def serve(client: Socket): Unit = {
    val reader = new BufferedReader(new InputStreamReader(client.getInputStream, UTF_8))
    val writer = new OutputStreamWriter(client.getOutputStream, UTF_8)
    val policies = new util.HashMap[String, Configurable]
    var quotas: Option[OwnQuotas] = None
    Iterator.continually(reader.readLine()).takeWhile(_ != null).foreach { line =>
      val question = Launcher.json.readTree(line)
      val answer = question.get(0).asText match {
        case "principal" =>
          val principal = build(question.get(1).asText, question.get(2).asText,
            question.get(3).asText, InetAddress.getByName(question.get(4).asText),
            question.get(5).asText, question.get(6).asText)
          OwnQuotas.remember(principal)
          Launcher.json.createArrayNode().add(principal.getPrincipalType).add(principal.getName)
        case "password" => Launcher.json.getNodeFactory.booleanNode(
          fits(question.get(1).asText, question.get(2).asText, question.get(3).asText))
        case "login" => Launcher.json.getNodeFactory.textNode(
          password(question.get(1).asText, question.get(2).asText))
        case "krb5.conf" => Launcher.json.getNodeFactory.textNode(
          System.getProperty("java.security.krb5.conf", ""))
        case "policy" =>
          val made = Class.forName(question.get(1).asText).getDeclaredConstructor().newInstance()
            .asInstanceOf[Configurable]
          made.configure(texts(question.get(2)))
          policies.put(question.get(1).asText, made)
          Launcher.json.nullNode
        case "change" | "creation" =>
          Launcher.json.getNodeFactory.textNode(rejection(policies.get(question.get(1).asText), question).orNull)
        case "authorize" => Launcher.json.getNodeFactory.booleanNode(isAllowed(question))
        case "quotas" =>
          quotas = Some(new OwnQuotas(question.get(1).asText, texts(question.get(2))))
          Launcher.json.nullNode
        case name if name.startsWith("quota_") =>
          try quotas.get.answer(question)
          catch { case error: RuntimeException => Launcher.json.createObjectNode().put("error", error.toString) }
        case "create_acls" => createAcls(question)
        case "delete_acls" => deleteAcls(question)
      }
      writer.write(Launcher.json.writeValueAsString(answer) + "\n")
      writer.flush()
    }
    quotas.foreach(_.close())
  }

  def texts(node: JsonNode): util.Map[String, String] = {
    val found = new util.HashMap[String, String]
    node.fields().forEachRemaining(each => found.put(each.getKey, each.getValue.textValue))
    found
  }

  private def rejection(policy: Configurable, question: JsonNode): Option[String] = try {
    policy match {
      case own: AlterConfigPolicy =>
        val kind = ConfigResource.Type.valueOf(question.get(2).asText)
        val resource = new ConfigResource(kind, question.get(3).asText)
        own.validate(new AlterConfigPolicy.RequestMetadata(resource, texts(question.get(4))))
      case own: CreateTopicPolicy => own.validate(creation(question))
    }
    None
  } catch { case rejected: PolicyViolationException => Some(rejected.getMessage) }

  private def creation(question: JsonNode): CreateTopicPolicy.RequestMetadata = {
    val given = (index: Int) => Option(question.get(index)).filterNot(_.isNull)
    val assignments = given(5).map { node =>
      val found = new util.HashMap[Integer, util.List[Integer]]
      node.fields().forEachRemaining { each =>
        val replicas = new util.ArrayList[Integer]
        each.getValue.elements().forEachRemaining(id => replicas.add(id.asInt))
        found.put(each.getKey.toInt, replicas)
      }
      found
    }
    new CreateTopicPolicy.RequestMetadata(question.get(2).asText,
      given(3).map(node => Int.box(node.asInt)).orNull,
      given(4).map(node => Short.box(node.asInt.toShort)).orNull,
      assignments.orNull, texts(question.get(6)))
  }

  private def isAllowed(question: JsonNode): Boolean = {
    val text = (index: Int) => question.get(index).asText
    val authorizer = authorizers.computeIfAbsent(text(1), name =>
      Class.forName(name).getDeclaredConstructor().newInstance().asInstanceOf[Authorizer])
    val resource = new ResourcePattern(ResourceType.fromCode(question.get(4).asInt.toByte),
      text(5), PatternType.LITERAL)
    val action = new Action(AclOperation.fromCode(question.get(3).asInt.toByte), resource, 1, true, true)
    val context = requestContext(question.get(2))
    authorizer.authorize(context, java.util.List.of(action)).get(0) == AuthorizationResult.ALLOWED
  }

  private def requestContext(request: JsonNode): RequestContext = {
    val text = (index: Int) => request.get(index).asText
    val header = new RequestHeader(ApiKeys.forId(request.get(5).asInt), request.get(6).asInt.toShort,
      text(8), request.get(7).asInt)
    new RequestContext(header, "", InetAddress.getByName(text(2)), new KafkaPrincipal(text(3), text(4)),
      new ListenerName(text(0)), SecurityProtocol.forName(text(1)), ClientInformation.EMPTY, false)
  }

  /** Keeps the authorizer of a test that changes ACLs itself, for the broker of this settings file. */
  def addAclChanges(properties: String, name: String, settings: collection.Map[String, String]): Unit = {
    val made = Class.forName(name).getDeclaredConstructor().newInstance().asInstanceOf[Authorizer]
    made.configure(settings.asJava)
    ofAcls.put(properties, made)
  }

  /** The broker of this settings file has ended. */
  def removeAclChanges(properties: String): Unit = Option(ofAcls.remove(properties)).foreach(_.close())

  private def createAcls(question: JsonNode): JsonNode = {
    val bindings = question.get(3).elements().asScala.map { row =>
      val text = (index: Int) => row.get(index).asText
      val code = (index: Int) => row.get(index).asInt.toByte
      new AclBinding(
        new ResourcePattern(ResourceType.fromCode(code(0)), text(1), PatternType.fromCode(code(2))),
        new AccessControlEntry(text(3), text(4), AclOperation.fromCode(code(5)),
          AclPermissionType.fromCode(code(6))))
    }.toList.asJava
    val answer = Launcher.json.createArrayNode()
    ofAcls.get(question.get(1).asText).createAcls(requestContext(question.get(2)), bindings).forEach { stage =>
      addError(answer, stage.toCompletableFuture.get().exception)
    }
    answer
  }

  private def deleteAcls(question: JsonNode): JsonNode = {
    val filters = question.get(3).elements().asScala.map { row =>
      val text = (index: Int) => row.get(index).textValue // may be null
      val code = (index: Int) => row.get(index).asInt.toByte
      new AclBindingFilter(
        new ResourcePatternFilter(ResourceType.fromCode(code(0)), text(1), PatternType.fromCode(code(2))),
        new AccessControlEntryFilter(text(3), text(4), AclOperation.fromCode(code(5)),
          AclPermissionType.fromCode(code(6))))
    }.toList.asJava
    val answer = Launcher.json.createArrayNode()
    ofAcls.get(question.get(1).asText).deleteAcls(requestContext(question.get(2)), filters).forEach { stage =>
      val result = stage.toCompletableFuture.get()
      val shown = answer.addArray()
      addError(shown, result.exception)
      val matched = shown.addArray()
      result.aclBindingDeleteResults.forEach { each =>
        val (pattern, entry) = (each.aclBinding.pattern, each.aclBinding.entry)
        val row = matched.addArray()
        addError(row, each.exception)
        row.add(pattern.resourceType.code.toInt).add(pattern.name).add(pattern.patternType.code.toInt)
          .add(entry.principal).add(entry.host).add(entry.operation.code.toInt)
          .add(entry.permissionType.code.toInt)
      }
    }
    answer
  }

  private def addError(row: ArrayNode, found: Optional[_ <: Throwable]): Unit =
    if (found.isEmpty) row.addNull()
    else {
      val error = ApiError.fromThrowable(found.get)
      row.addArray().add(error.error.code.toInt).add(error.message)
    }

  private def handler(name: String): AuthenticateCallbackHandler =
    Class.forName(name).getDeclaredConstructor().newInstance().asInstanceOf[AuthenticateCallbackHandler]

  private def fits(name: String, user: String, password: String): Boolean = {
    val plain = new PlainAuthenticateCallback(password.toCharArray)
    handler(name).handle(Array(new NameCallback("user", user), plain))
    plain.authenticated
  }

  /** As in Kafka, the handler has the user as a credential of the subject. */
  private def password(name: String, user: String): String = {
    val subject = new Subject(true, util.Set.of(), util.Set.of(user), util.Set.of())
    val asked = new PasswordCallback("password", false)
    val call: PrivilegedAction[Unit] = () => handler(name).handle(Array(asked))
    Subject.doAs(subject, call)
    new String(asked.getPassword)
  }

  private def build(name: String, listener: String, protocol: String, address: InetAddress,
                    client: String, certificate: String): KafkaPrincipal = {
    val builder = builders.computeIfAbsent(name, _ =>
      Class.forName(name).getDeclaredConstructor().newInstance().asInstanceOf[KafkaPrincipalBuilder])
    builder.build(SecurityProtocol.forName(protocol) match {
      case SecurityProtocol.PLAINTEXT => new PlaintextAuthenticationContext(address, listener)
      case SecurityProtocol.SSL => new SslAuthenticationContext(session(client), address, listener)
      case sasl => new SaslAuthenticationContext(saslServer(client), sasl, address, listener,
        Optional.of(certificate).filter(!_.isEmpty).map(session))
    })
  }

  private def session(client: String): SSLSession = Internals.only[SSLSession] {
    case ("getPeerPrincipal", _) =>
      if (client == "ANONYMOUS") throw new SSLPeerUnverifiedException("no certificate")
      new X500Principal(client)
  }

  private def saslServer(client: String): SaslServer = Internals.only[SaslServer] {
    case ("getAuthorizationID", _) => client
    case ("getMechanismName", _) => "PLAIN"
    case ("isComplete", _) => true
  }
}
