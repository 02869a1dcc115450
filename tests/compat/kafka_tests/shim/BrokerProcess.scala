package ottla.shim

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}

import kafka.security.authorizer.AclAuthorizer
import kafka.zookeeper.ZooKeeperClientTimeoutException
import org.apache.kafka.common.KafkaException
import org.apache.kafka.common.config.ConfigException
import org.apache.kafka.common.errors.InconsistentClusterIdException
import org.apache.kafka.common.utils.Exit
import org.apache.zookeeper.KeeperException

import java.io.{BufferedReader, File, InputStreamReader, OutputStreamWriter, PrintWriter, Writer}
import java.net.{InetAddress, Socket}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Files
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicInteger
import scala.jdk.CollectionConverters._

/** The process that forks brokers (`python -m tests.compat.kafka_tests.broker`): one for this JVM. */
object Launcher {
  val json = new ObjectMapper

  /** Directory for settings files and logs of brokers. */
  val directory = new File(System.getProperty("ottla.directory"))
  private val numbers = new AtomicInteger

  private lazy val process: Process = {
    val builder = new ProcessBuilder(
      System.getProperty("ottla.python"), "-m", "tests.compat.kafka_tests.broker")
    builder.environment.put("PYTHONPATH", System.getProperty("ottla.repository"))
    builder.redirectError(ProcessBuilder.Redirect.INHERIT)
    builder.start()
  }
  private lazy val orders: Writer = new OutputStreamWriter(process.getOutputStream, UTF_8)
  private lazy val answers = new BufferedReader(new InputStreamReader(process.getInputStream, UTF_8))

  /** A new directory for one start of a broker. */
  def newDirectory(brokerId: Int): File = {
    val made = new File(directory, s"start-${numbers.incrementAndGet()}-broker-$brokerId")
    made.mkdirs()
    made
  }

  /** Whether a test may start its key distribution center after the broker. */
  private def mayHaveKerberosLater: Boolean = System.getProperty("java.security.auth.login.config") != null &&
    System.getProperty("java.security.krb5.conf") == null

  /** Starts a broker; returns its process. */
  def start(properties: File, log: File, state: File, options: String,
            builders: collection.Map[String, String], authorizer: Option[String],
            callbacks: SaslCallbacks, policies: collection.Map[String, String],
            changesAcls: Boolean, quotas: Option[String]): ProcessHandle = synchronized {
    val order = json.createObjectNode()
    // Not where nothing is asked: some tests count the threads of the JVM.
    if (builders.nonEmpty || authorizer.nonEmpty || !callbacks.isEmpty || policies.nonEmpty ||
      changesAcls || quotas.nonEmpty || mayHaveKerberosLater) {
      order.put("plugins", Plugins.port).put("changes_acls", changesAcls)
      if (!callbacks.isEmpty)
        order.putArray("sasl").add(callbacks.ofClients.orNull).add(callbacks.ofBroker.orNull)
      val named = order.putObject("builders")
      builders.foreach { case (prefix, name) => named.put(prefix, name) }
      quotas.foreach(order.put("quotas", _))
      authorizer.foreach(order.put("authorizer", _))
      val ofPolicies = order.putObject("policies")
      policies.foreach { case (setting, name) => ofPolicies.put(setting, name) }
    }
    order.put("properties", properties.getPath).put("log", log.getPath)
    order.put("state", state.getPath).put("options", options)
    orders.write(json.writeValueAsString(order) + "\n")
    orders.flush()
    val pid = answers.readLine().trim.toLong
    ProcessHandle.of(pid).orElseThrow(() => new org.apache.kafka.common.config.ConfigException(
      s"the broker did not start: ${new String(java.nio.file.Files.readAllBytes(log.toPath), UTF_8)}"))
  }
}

/** The SASL callback handlers of a test: of the passwords of clients, and of that of the broker. */
case class SaslCallbacks(ofClients: Option[String], ofBroker: Option[String]) {
  def isEmpty: Boolean = ofClients.isEmpty && ofBroker.isEmpty
}

object BrokerProcess {
  private val ClientPasswords = "plain.sasl.server.callback.handler.class"
  private val Policies = Map("alter.config.policy.class.name" -> "OwnAlterConfigPolicy",
    "create.topic.policy.class.name" -> "OwnCreateTopicPolicy")
  private val Quotas = "client.quota.callback.class"
  private val BrokerPassword = "sasl.client.callback.handler.class"

  /** The exit code of a broker whose log directories failed. */
  val Failed = 1
  val Killed = -1
}

/** One broker process, from its start to its end. */
class BrokerProcess(brokerId: Int, settings: collection.Map[String, String]) {
  private val directory = Launcher.newDirectory(brokerId)
  private val log = new File(directory, "broker.log")
  private val properties = new File(directory, "server.properties")
  private val stateFile = new File(directory, "state.json")
  private val exitCodeFile = new File(directory, "exit-code")
  @volatile private var isToStop = false
  private val handle = launch()
  /** What the broker wrote when it began to serve clients. */
  val state: JsonNode = awaitState()
  private var inspection: Option[(Socket, BufferedReader, Writer)] = None

  def isAlive: Boolean = handle.isAlive

  /** The port of a listener. */
  def port(listener: String): Int = {
    val found = ports.get(listener)
    if (found == null) throw new KafkaException(s"no listener $listener: $ports")
    found.asInt
  }

  /** The ports of the open listeners, which change while the broker runs. */
  def ports: JsonNode = if (handle.isAlive) ask("ports") else state.get("ports")

  /** What a broker that was stopped had in its metadata cache, and its logs. */
  private var lastMetadata: Option[JsonNode] = None
  private var lastLogs: JsonNode = Launcher.json.createObjectNode()

  /** The answer of the broker to a question: its metadata cache, the state of a partition. A broker
    * that was stopped has the metadata and the logs of that moment and no partitions.
    */
  def ask(question: Any*): JsonNode = synchronized {
    if (!handle.isAlive) question.head match {
      case "metadata" if lastMetadata.nonEmpty => lastMetadata.get
      case "partition" =>
        val shown = Launcher.json.createObjectNode()
        val log = Option(lastLogs.get(s"${question(1)}-${question(2)}"))
        shown.set[JsonNode]("partition", Launcher.json.nullNode)
        shown.set[JsonNode]("log", log.getOrElse(Launcher.json.nullNode))
      case other => throw new IllegalStateException(s"broker $brokerId was stopped, no $other")
    } else exchange(question)
  }

  private def exchange(question: Seq[Any]): JsonNode = {
    val (_, reader, writer) = inspection.getOrElse {
      val socket = new Socket(InetAddress.getLoopbackAddress, state.get("inspection").asInt)
      socket.setSoTimeout(30000)
      val opened = (socket,
        new BufferedReader(new InputStreamReader(socket.getInputStream, UTF_8)),
        new OutputStreamWriter(socket.getOutputStream, UTF_8))
      inspection = Some(opened)
      opened
    }
    writer.write(Launcher.json.writeValueAsString(question.asJava) + "\n")
    writer.flush()
    val line = reader.readLine()
    if (line == null) throw new IllegalStateException(s"broker $brokerId has ended: ${lastLines()}")
    Launcher.json.readTree(line)
  }

  /** Asks the broker to stop; kills it when it has not stopped after the timeout. */
  def stop(timeoutMs: Long): Unit = {
    try {
      lastMetadata = Some(ask("metadata"))
      lastLogs = ask("logs")
    } catch { case _: Exception => () } // it ended by itself, or is about to
    isToStop = true
    handle.destroy()
    if (!hasEnded(timeoutMs)) {
      System.err.println(s"broker $brokerId did not stop in $timeoutMs ms and is killed: $log")
      handle.destroyForcibly()
      hasEnded(10000)
    }
    inspection.foreach(_._1.close())
    Plugins.removeAclChanges(properties.getPath)
  }

  private def hasEnded(timeoutMs: Long): Boolean = {
    val until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs)
    while (handle.isAlive && System.nanoTime() < until) Thread.sleep(10)
    !handle.isAlive
  }

  private def launch(): ProcessHandle = {
    val (ofTests, plain) = settings.toSeq.sorted.partition { case (name, value) =>
      Seq("principal.builder.class", BrokerProcess.ClientPasswords, BrokerProcess.BrokerPassword)
        .exists(name.endsWith) && !value.startsWith("org.apache.kafka.common.")
    }
    val (builders, handlers) = ofTests.partition(_._1.endsWith("principal.builder.class"))
    def handler(name: String) = handlers.find(_._1.endsWith(name)).map(_._2)
    val out = new PrintWriter(properties, UTF_8)
    plain.flatMap {
      // A store that does nothing, which Kafka's tests have: here it is a directory.
      case (name @ "remote.log.storage.manager.class.name", value) if value.endsWith("NoOpRemoteStorageManager") =>
        Seq(name -> "aiven", "rsm.config.storage.backend.class" -> "filesystem",
          "rsm.config.storage.root" -> directory.getPath, "rsm.config.chunk.size" -> "4194304")
      case ("remote.log.metadata.manager.class.name", value) if value.endsWith("NoOpRemoteLogMetadataManager") =>
        Seq.empty
      case (name, _) if BrokerProcess.Policies.contains(name) =>
        Seq(name -> s"tests.compat.kafka_tests.plugins.${BrokerProcess.Policies(name)}")
      case (name @ BrokerProcess.Quotas, _) => Seq(name -> "tests.compat.kafka_tests.own_quotas.OwnQuotas")
      case other => Seq(other)
    }.map {
      case (name @ "authorizer.class.name", value) if isAclAuthorizer(value) =>
        name -> classOf[AclAuthorizer].getName
      case other => other
    }.foreach { case (name, value) =>
      out.println(name + "=" + value.replace("\\", "\\\\").replace("\n", "\\n"))
    }
    out.close()
    val ofAcls = settings.get("authorizer.class.name").filter(name => isAclAuthorizer(name) && overrides(name, "createAcls"))
    // Kafka permits this addition of the shim in KRaft mode only.
    val known = settings - "group.coordinator.rebalance.protocols"
    ofAcls.foreach(Plugins.addAclChanges(properties.getPath, _, known))
    val options = Seq("java.security.auth.login.config", "java.security.krb5.conf")
      .flatMap(name => Option(System.getProperty(name)).map(value => s"-D$name=$value")).mkString(" ")
    Launcher.start(properties, log, stateFile, options,
      builders.map { case (name, value) => name.stripSuffix("principal.builder.class") -> value }.toMap,
      settings.get("authorizer.class.name").filter(name => isAclAuthorizer(name) && overrides(name, "authorize")),
      SaslCallbacks(handler(BrokerProcess.ClientPasswords), handler(BrokerProcess.BrokerPassword)),
      settings.filter { case (name, _) => BrokerProcess.Policies.contains(name) }, ofAcls.nonEmpty,
      settings.get(BrokerProcess.Quotas))
  }

  /** Whether this is Kafka's authorizer, or one of a test that extends it. */
  private def isAclAuthorizer(name: String): Boolean =
    try classOf[AclAuthorizer].isAssignableFrom(Class.forName(name))
    catch { case _: ClassNotFoundException => false }

  /** Whether an authorizer of a test does this by itself: decides, or changes ACLs. */
  private def overrides(name: String, method: String): Boolean = name != classOf[AclAuthorizer].getName &&
    Class.forName(name).getDeclaredMethods.exists(_.getName == method)

  private def awaitState(): JsonNode = {
    val until = System.nanoTime() + TimeUnit.SECONDS.toNanos(60)
    while (!stateFile.exists()) {
      if (!handle.isAlive) throw failure()
      if (System.nanoTime() > until) throw new IllegalStateException(
        s"the broker is not ready after 60 s: ${lastLines()}")
      Thread.sleep(5)
    }
    // Kafka's broker ends its JVM when it cannot go on.
    handle.onExit().thenRun(() => if (!isToStop && exitCode() == BrokerProcess.Failed) Exit.halt(1, lastLines()))
    Launcher.json.readTree(stateFile)
  }

  private def exitCode(): Int =
    if (exitCodeFile.exists()) Files.readString(exitCodeFile.toPath).toInt else BrokerProcess.Killed

  /** The exception of Kafka's broker for what stopped the start. */
  private def failure(): Exception = {
    val reason = s"the broker did not start: ${lastLines()}"
    exitCode() match {
      case 10 | 21 => new IllegalArgumentException(reason)
      case 15 => new InconsistentClusterIdException(reason)
      case _ if wrote("Stored node id") => new RuntimeException(lastLines().replaceFirst("^.*?(?=Stored)", ""))
      case 16 => new ZooKeeperClientTimeoutException(reason)
      case 20 => new KeeperException.NodeExistsException(reason)
      case _ => new ConfigException(reason)
    }
  }

  private def wrote(text: String): Boolean = lastLines().contains(text)

  private def lastLines(): String =
    if (log.exists()) Files.readAllLines(log.toPath).asScala.takeRight(5).mkString(" | ") else ""
}
