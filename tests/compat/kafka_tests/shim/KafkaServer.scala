package kafka.server

import com.yammer.metrics.core.{MetricName, Gauge => YammerGauge}
import kafka.controller.KafkaController
import kafka.coordinator.transaction.TransactionCoordinator
import kafka.log.LogManager
import kafka.log.remote.RemoteLogManager
import kafka.cluster.Broker
import kafka.network.{ConnectionQuotas, DataPlaneAcceptor, SocketServer}
import kafka.security.authorizer.AclAuthorizer
import kafka.server.metadata.ZkMetadataCache
import kafka.zk.{BrokerInfo, KafkaZkClient}
import org.apache.kafka.common.{ClusterResource, ClusterResourceListener}
import org.apache.kafka.common.acl.{AclBinding, AclBindingFilter}
import org.apache.kafka.common.config.types.Password
import org.apache.kafka.common.network.ListenerName
import org.apache.kafka.common.security.JaasUtils
import org.apache.kafka.common.security.scram.internals.{ScramMechanism => Mechanisms}
import org.apache.kafka.common.security.token.delegation.internals.DelegationTokenCache
import org.apache.kafka.common.utils.Time
import org.apache.kafka.coordinator.group.GroupCoordinator
import org.apache.kafka.metadata.BrokerState
import org.apache.kafka.security.CredentialProvider
import org.apache.kafka.server.NodeToControllerChannelManager
import org.apache.kafka.server.authorizer.{AclCreateResult, AclDeleteResult, AuthorizableRequestContext, Authorizer}
import org.apache.kafka.server.config.ConfigType
import org.apache.kafka.server.metrics.KafkaYammerMetrics
import org.apache.kafka.server.util.Scheduler
import org.apache.kafka.storage.internals.log.LogDirFailureChannel
import org.apache.zookeeper.client.ZKClientConfig
import org.mockito.Mockito
import ottla.shim.{BrokerProcess, Internals, JavaMetrics, ServerInternals}

import java.net.InetAddress
import java.time.Duration
import java.util
import java.util.Properties
import java.util.concurrent.CompletionStage
import scala.jdk.CollectionConverters._

object KafkaServer {
  val MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS: Long = 120000

  def zkClientConfigFromKafkaConfig(config: KafkaConfig, forceZkSslClientEnable: Boolean = false): ZKClientConfig = {
    val made = new ZKClientConfig
    if (!JaasUtils.isZkSaslEnabled) made.setProperty(JaasUtils.ZK_SASL_CLIENT, "false")
    made
  }

  /** How long a change in ZooKeeper has to reach the brokers, which watch it, before a test goes on. */
  private[server] val PropagationMs = 400L

  // These are for the JVM of Kafka's own broker.
  private val NotForOttla = Set("unstable.feature.versions.enable", "unstable.api.versions.enable",
    "metric.reporters", "kafka.metrics.reporters", "auto.include.jmx.reporter")

  // One test sets the documentation of a setting as its name; Kafka ignores what it does not know.
  private def isName(setting: (String, AnyRef)): Boolean = !setting._1.contains(" ")

  // Kafka has the APIs of the consumer protocol also where that is not enabled.
  private def protocols(config: KafkaConfig): Map[String, String] =
    if (config.originals.get("unstable.api.versions.enable") != "true") Map.empty
    else Map("group.coordinator.rebalance.protocols" -> "classic,consumer")

  private def settings(config: KafkaConfig): Map[String, String] =
    protocols(config) ++ config.originals.asScala.toMap.removedAll(NotForOttla).filter(isName).collect {
      case (name, value: Password) => name -> value.value
      case (name, value: util.List[_]) => name -> value.asScala.mkString(",")
      case (name, value: Class[_]) => name -> value.getName
      case (name, value) if value != null => name -> value.toString
    }
}

/** Stands where Kafka's tests expect the broker of ZooKeeper mode; starts a process of Ottla. */
class KafkaServer(val config: KafkaConfig, time: Time = Time.SYSTEM,
                  threadNamePrefix: Option[String] = None, enableForwarding: Boolean = false)
  extends KafkaBroker with Server {

  @volatile private var process: Option[BrokerProcess] = None
  private var lastProcess: Option[BrokerProcess] = None
  private var openZkClient: Option[KafkaZkClient] = None
  private var openAuthorizer: Option[Authorizer] = None
  private var credentials: Option[WatchedCredentials] = None
  private var dynamicSettings: Option[WatchedSettings] = None
  private val internals = new Internals(config, () => running, () => zkClient, () => authorizer,
    () => metrics)

  private def running: BrokerProcess =
    process.orElse(lastProcess).getOrElse(throw new IllegalStateException("the broker was not started"))

  override def startup(): Unit = if (process.isEmpty) {
    val started = new BrokerProcess(config.brokerId, KafkaServer.settings(config))
    config._brokerId = started.state.get("broker_id").asInt
    config._nodeId = config._brokerId
    process = Some(started)
    lastProcess = process
    JavaMetrics.add(started)
    addExpiredConnections()
    reportCluster()
    config.dynamicConfig.initialize(None, None)
    dynamicSettings = Some(new WatchedSettings(config, zkClient, started).start())
  }

  override def shutdown(timeout: Duration): Unit = synchronized {
    process.foreach(JavaMetrics.remove)
    process.foreach(_.stop(math.max(timeout.toMillis, 1000L).min(60000L)))
    process = None
    credentials.foreach(_.close())
    credentials = None
    dynamicSettings.foreach(_.close())
    dynamicSettings = None
    openAuthorizer.foreach(_.close())
    openAuthorizer = None
    openZkClient.foreach(_.close())
    openZkClient = None
  }

  override def awaitShutdown(): Unit = ()
  override def isShutdown(): Boolean = !process.exists(_.isAlive)
  override def brokerState: BrokerState =
    if (isShutdown()) BrokerState.NOT_RUNNING else BrokerState.RUNNING
  override def clusterId: String = running.state.get("cluster_id").asText
  override def boundPort(listenerName: ListenerName): Int = running.port(listenerName.value)

  private[kafka] def zkClient: KafkaZkClient = synchronized {
    openZkClient.getOrElse {
      val opened = Mockito.spy[KafkaZkClient](KafkaZkClient.createZkClient("shim", Time.SYSTEM, config,
        KafkaServer.zkClientConfigFromKafkaConfig(config)))
      // A test that ends the session ends that of the process.
      Mockito.doReturn(internals.session, Nil: _*).when(opened).currentZooKeeper
      openZkClient = Some(opened)
      opened
    }
  }

  def brokerFeatures: BrokerFeatures = internals.brokerFeatures

  /** What the process registers, with the features that a test has added. */
  def createBrokerInfo: BrokerInfo = {
    val registered = zkClient.getBroker(config.brokerId).get
    BrokerInfo(Broker(config.brokerId, registered.endPoints, config.rack, brokerFeatures.supportedFeatures),
      config.interBrokerProtocolVersion, -1)
  }

  /** Metrics reporters of tests get the id of the cluster, as those in a broker of Kafka. */
  private def reportCluster(): Unit =
    Seq("metric.reporters", "kafka.metrics.reporters").flatMap(name => Option(config.originals.get(name)))
      .flatMap(_.toString.split(",")).map(_.trim).filter(_.nonEmpty).map(Class.forName)
      .filter(classOf[ClusterResourceListener].isAssignableFrom(_)).foreach { reporter =>
        reporter.getDeclaredConstructor().newInstance().asInstanceOf[ClusterResourceListener]
          .onUpdate(new ClusterResource(clusterId))
      }

  override def metadataCache: ZkMetadataCache = internals.metadataCache
  override def dataPlaneRequestProcessor: KafkaApis = internals.requestProcessor
  override def logManager: LogManager = internals.logManager
  def getLogManager: LogManager = internals.logManager
  override def replicaManager: ReplicaManager = internals.replicaManager
  override def groupCoordinator: GroupCoordinator = internals.groupCoordinator
  def transactionCoordinator: TransactionCoordinator = internals.transactionCoordinator
  def kafkaController: KafkaController = internals.controller
  def logDirFailureChannel: LogDirFailureChannel = internals.logDirFailureChannel

  /** Kafka's own authorizer on the same ZooKeeper: it writes and reads ACLs as the brokers do. */
  override def authorizer: Option[Authorizer] = synchronized {
    if (openAuthorizer.isEmpty && config.originals.containsKey("authorizer.class.name")) {
      val opened = new PatientAuthorizer
      opened.configure(config.originals)
      openAuthorizer = Some(opened)
    }
    openAuthorizer
  }

  override def credentialProvider: CredentialProvider = synchronized {
    val watched = credentials.getOrElse(new WatchedCredentials(zkClient).start())
    credentials = Some(watched)
    watched.provider
  }
  override def tokenCache: DelegationTokenCache = internals.tokenCache

  override def kafkaYammerMetrics: KafkaYammerMetrics = KafkaYammerMetrics.INSTANCE
  override def remoteLogManagerOpt: Option[RemoteLogManager] = None

  override lazy val socketServer: SocketServer = Internals.only[SocketServer] {
    case ("boundPort", listener +: _) => boundPort(listener.asInstanceOf[ListenerName])
    case ("config", _) => config
    case ("metrics", _) => metrics
    case ("connectionCount", Seq(address: InetAddress)) => connections(address).get("count").asInt
    case ("connectionQuotas", _) => Internals.only[ConnectionQuotas] {
      case ("connectionRateForIp", Seq(address: InetAddress)) => connections(address).get("rate").asInt
    }
  }

  private def connections(address: InetAddress) = running.ask("connections", address.getHostAddress)

  private def internal(name: String): Nothing = throw new ServerInternals(s"KafkaServer.$name")
  override def dataPlaneRequestHandlerPool: KafkaRequestHandlerPool = internal("dataPlaneRequestHandlerPool")

  /** The metrics of the process that tests read; a stopped broker has none. */
  override lazy val metrics: JavaMetrics = new JavaMetrics(() => process)

  private def addExpiredConnections(): Unit = {
    val name = new MetricName("kafka.network", "SocketServer", "ExpiredConnectionsKilledCount")
    KafkaYammerMetrics.defaultRegistry.newGauge(name, new YammerGauge[Double] {
      override def value(): Double =
        JavaMetrics.value(KafkaServer.this.process, "expired-connections-killed-count")
    })
  }
  override def kafkaScheduler: Scheduler = internal("kafkaScheduler")
  override def quotaManagers: QuotaFactory.QuotaManagers = internals.quotaManagers
  override def brokerTopicStats: BrokerTopicStats = internal("brokerTopicStats")
  override def clientToControllerChannelManager: NodeToControllerChannelManager =
    internals.controllerRequests
}

/** An authorizer that gives brokers the time to read what it has written. */
private class PatientAuthorizer extends AclAuthorizer {
  override def createAcls(context: AuthorizableRequestContext, bindings: util.List[AclBinding])
    : util.List[_ <: CompletionStage[AclCreateResult]] = patient(super.createAcls(context, bindings))

  override def deleteAcls(context: AuthorizableRequestContext, filters: util.List[AclBindingFilter])
    : util.List[_ <: CompletionStage[AclDeleteResult]] = patient(super.deleteAcls(context, filters))

  private def patient[T](result: T): T = {
    Thread.sleep(KafkaServer.PropagationMs)
    result
  }
}

/** Something of ZooKeeper that is read again and again, in a thread. */
private abstract class Watched(name: String) {
  @volatile private var open = true
  private val thread = new Thread(() => while (open) {
    try takeChanges()
    catch { case _: InterruptedException => open = false }
  }, name)
  thread.setDaemon(true)

  protected def takeChanges(): Unit
  def start(): this.type = { thread.start(); this }
  def close(): Unit = {
    open = false
    thread.interrupt()
    thread.join()
  }
}

/** SCRAM credentials of ZooKeeper, some time after they were written there. */
private class WatchedCredentials(zkClient: KafkaZkClient) extends Watched("credentials of ZooKeeper") {
  val provider = new CredentialProvider(Mechanisms.mechanismNames,
    new DelegationTokenCache(Mechanisms.mechanismNames))

  override protected def takeChanges(): Unit = {
    val found = zkClient.getAllEntitiesWithConfig(ConfigType.USER)
      .map(user => user -> zkClient.getEntityConfigs(ConfigType.USER, user))
    Thread.sleep(KafkaServer.PropagationMs)
    found.foreach { case (user, properties) => provider.updateCredentials(user, properties) }
  }
}

/** The dynamic settings of the broker in ZooKeeper, which tests read in the broker's KafkaConfig. */
private class WatchedSettings(config: KafkaConfig, zkClient: KafkaZkClient, process: BrokerProcess)
  extends Watched("settings of ZooKeeper") {
  private var known: (Properties, Properties) = (new Properties, new Properties)
  private var acceptors = Map.empty[String, DataPlaneAcceptor]
  takeListeners()

  /** Kafka has an acceptor for each open listener among what follows the settings. */
  private def takeListeners(): Unit = {
    val names = process.ports.fieldNames().asScala.toSet
    val reconfigurables = config.dynamicConfig.reconfigurables
    acceptors.removedAll(names).values.foreach(reconfigurables.remove(_))
    val added = (names -- acceptors.keySet).map(name => name -> Internals.only[DataPlaneAcceptor] {
      case ("listenerName", _) => new ListenerName(name)
      case ("reconfigurableConfigs", _) => util.Set.of()
      case ("equals" | "hashCode", _) => name.hashCode
    }).toMap
    added.values.foreach(reconfigurables.add(_))
    acceptors = acceptors.filter(each => names.contains(each._1)) ++ added
  }

  override protected def takeChanges(): Unit = {
    try takeListeners()
    catch { case _: IllegalStateException | _: java.io.IOException => () } // it was stopped
    val found = (zkClient.getEntityConfigs(ConfigType.BROKER, "<default>"),
      zkClient.getEntityConfigs(ConfigType.BROKER, config.brokerId.toString))
    Thread.sleep(KafkaServer.PropagationMs)
    if (found != known) {
      config.dynamicConfig.updateDefaultConfig(found._1)
      config.dynamicConfig.updateBrokerConfig(config.brokerId, found._2)
      known = found
    }
  }
}
