package ottla.shim

import org.apache.kafka.common.security.auth._

import java.io.{BufferedReader, InputStreamReader, OutputStreamWriter}
import java.net.{InetAddress, ServerSocket, Socket}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.ConcurrentHashMap
import javax.net.ssl.{SSLPeerUnverifiedException, SSLSession}
import javax.security.auth.x500.X500Principal
import javax.security.sasl.SaslServer

/** Calls the principal builders of tests for the brokers, which cannot load Java classes.
  *
  * Each line of a connection is a JSON list: class, listener, security protocol, address of the
  * client, name by the rules of the broker. The answer is a list: type and name of the principal.
  */
object PrincipalBuilders {
  private val builders = new ConcurrentHashMap[String, KafkaPrincipalBuilder]

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
    val thread = new Thread(() => body, "principal builders")
    thread.setDaemon(true)
    thread.start()
  }

  private def serve(client: Socket): Unit = {
    val reader = new BufferedReader(new InputStreamReader(client.getInputStream, UTF_8))
    val writer = new OutputStreamWriter(client.getOutputStream, UTF_8)
    Iterator.continually(reader.readLine()).takeWhile(_ != null).foreach { line =>
      val question = Launcher.json.readTree(line)
      val principal = build(question.get(0).asText, question.get(1).asText, question.get(2).asText,
        InetAddress.getByName(question.get(3).asText), question.get(4).asText)
      val answer = Launcher.json.createArrayNode().add(principal.getPrincipalType).add(principal.getName)
      writer.write(Launcher.json.writeValueAsString(answer) + "\n")
      writer.flush()
    }
  }

  private def build(name: String, listener: String, protocol: String, address: InetAddress,
                    client: String): KafkaPrincipal = {
    val builder = builders.computeIfAbsent(name, _ =>
      Class.forName(name).getDeclaredConstructor().newInstance().asInstanceOf[KafkaPrincipalBuilder])
    builder.build(SecurityProtocol.forName(protocol) match {
      case SecurityProtocol.PLAINTEXT => new PlaintextAuthenticationContext(address, listener)
      case SecurityProtocol.SSL => new SslAuthenticationContext(session(client), address, listener)
      case sasl => new SaslAuthenticationContext(saslServer(client), sasl, address, listener)
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
