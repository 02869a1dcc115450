package ottla.shim

import com.fasterxml.jackson.databind.JsonNode
import kafka.cluster.{Broker, Partition}
import kafka.controller.{ControllerBrokerStateInfo, ControllerChannelManager, ControllerContext, KafkaController, PartitionAndReplica}
import kafka.coordinator.transaction.TransactionCoordinator
import kafka.log.{LogCleaner, LogManager, UnifiedLog}
import kafka.server.QuotaFactory.QuotaManagers
import kafka.server.{BrokerFeatures, ClientQuotaManager, ClientRequestQuotaManager, ClientSensors, ControllerMutationQuotaManager, HostedPartition, KafkaApis, KafkaConfig, ReplicaManager, ReplicationQuotaManager, RequestLocal}
import kafka.server.checkpoints.OffsetCheckpointFile
import kafka.server.metadata.ZkMetadataCache
import kafka.zk.KafkaZkClient
import org.apache.kafka.clients.{ClientResponse, NetworkClient}
import org.apache.kafka.common.feature.{Features, SupportedVersionRange}
import org.apache.kafka.common.message.MetadataResponseData
import org.apache.kafka.common.message.UpdateMetadataRequestData.{UpdateMetadataBroker, UpdateMetadataEndpoint, UpdateMetadataPartitionState}
import org.apache.kafka.common.errors.KafkaStorageException
import org.apache.kafka.common.metrics.{Metrics, Quota}
import org.apache.kafka.common.protocol.ApiKeys
import org.apache.kafka.common.record.{FileRecords, MemoryRecords, RecordBatch}
import org.apache.kafka.common.requests.{ListOffsetsRequest, MetadataResponse, UpdateMetadataRequest}
import org.apache.kafka.common.security.auth.KafkaPrincipal
import org.apache.kafka.common.security.token.delegation.TokenInformation
import org.apache.kafka.common.security.token.delegation.internals.DelegationTokenCache
import org.apache.kafka.common.utils.{SecurityUtils, Utils}
import org.apache.kafka.common.{TopicPartition, Uuid}
import org.apache.kafka.coordinator.group.GroupCoordinator
import org.apache.kafka.server.{ControllerRequestCompletionHandler, NodeToControllerChannelManager}
import org.apache.kafka.server.authorizer.Authorizer
import org.apache.kafka.server.common.MetadataVersion
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache
import org.apache.kafka.storage.internals.log.{AppendOrigin, BatchMetadata, EpochEntry, FetchDataInfo, LogConfig, LogDirFailureChannel, LogOffsetMetadata, LogSegment, ProducerStateEntry, ProducerStateManager, ProducerStateManagerConfig, VerificationGuard}
import org.apache.zookeeper.ZooKeeper
import org.mockito.Mockito
import org.mockito.invocation.InvocationOnMock

import java.io.{File, IOException}
import java.util
import java.util.concurrent.{TimeUnit, TimeoutException}
import java.util.{Base64, Optional, OptionalLong, Properties}
import scala.jdk.CollectionConverters._
import scala.reflect.ClassTag

/** What a test reads that exists only where the broker runs in its JVM. */
class ServerInternals(what: String)
  extends UnsupportedOperationException(s"the test reaches into server internals: $what")

object Internals {
  type Answers = PartialFunction[(String, Seq[AnyRef]), Any]

  /** An object of a server's class that answers some calls; the others throw ServerInternals. */
  def only[T <: AnyRef](answers: Answers)(implicit tag: ClassTag[T]): T = {
    val kind = tag.runtimeClass.asInstanceOf[Class[T]]
    Mockito.mock(kind, Mockito.withSettings().stubOnly().defaultAnswer { (call: InvocationOnMock) =>
      val name = call.getMethod.getName
      val key = (name, call.getArguments.toSeq.asInstanceOf[Seq[AnyRef]])
      if (answers.isDefinedAt(key)) answers(key) match {
        case () => null // of a method without a result
        case answer => answer.asInstanceOf[AnyRef]
      }
      else if (name == "toString") s"${kind.getSimpleName} of a process"
      else throw new ServerInternals(s"${kind.getSimpleName}.$name")
    })
  }
}

/** The server's objects that tests read, with the answers of the process. */
class Internals(config: KafkaConfig, process: () => BrokerProcess, zkClient: () => KafkaZkClient,
                authorizer: () => Option[Authorizer], metrics: () => JavaMetrics) {
  import Internals.only

  def metadataCache: ZkMetadataCache = {
    val known = process().ask("metadata")
    val brokers = known.get("brokers").elements().asScala.map { broker =>
      val endpoints = broker.get("endpoints").elements().asScala.map { each =>
        new UpdateMetadataEndpoint().setListener(each.get(0).asText).setHost(each.get(1).asText)
          .setPort(each.get(2).asInt).setSecurityProtocol(each.get(3).asInt.toShort)
      }.toList.asJava
      val rack = if (broker.get("rack").isNull) null else broker.get("rack").asText
      new UpdateMetadataBroker().setId(broker.get("id").asInt).setRack(rack).setEndpoints(endpoints)
    }.toList.asJava
    val ids = new util.HashMap[String, Uuid]
    val states = known.get("topics").elements().asScala.flatMap { topic =>
      ids.put(topic.get("name").asText, Uuid.fromString(topic.get("id").asText))
      topic.get("partitions").elements().asScala.map(partitionState(topic.get("name").asText, _))
    }.toList.asJava
    val controller = known.get("controller_id").asInt
    val request = new UpdateMetadataRequest.Builder(ApiKeys.UPDATE_METADATA.latestVersion, controller,
      known.get("controller_epoch").asInt, 0L, states, brokers, ids).build()
    val cache = new ZkMetadataCache(config.brokerId, config.interBrokerProtocolVersion,
      BrokerFeatures.createEmpty(), false) {
      override def waitUntilFeatureEpochOrThrow(epoch: Long, timeoutMs: Long): Unit = {
        val until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs)
        while (process().ask("features").get("epoch").asLong < epoch) {
          if (System.nanoTime() > until) throw new TimeoutException(s"no feature epoch $epoch")
          Thread.sleep(10)
        }
      }
    }
    cache.updateMetadata(0, request)
    cache
  }

  private def partitionState(topic: String, row: JsonNode): UpdateMetadataPartitionState =
    new UpdateMetadataPartitionState().setTopicName(topic).setPartitionIndex(row.get(0).asInt)
      .setLeader(row.get(1).asInt).setLeaderEpoch(row.get(2).asInt).setIsr(numbers(row.get(3)))
      .setReplicas(numbers(row.get(4))).setOfflineReplicas(numbers(row.get(5)))
      .setControllerEpoch(row.get(6).asInt).setZkVersion(row.get(7).asInt)

  private def numbers(row: JsonNode): util.List[Integer] =
    row.elements().asScala.map(each => Integer.valueOf(each.asInt)).toList.asJava

  val requestProcessor: KafkaApis = only[KafkaApis] {
    case ("metadataCache", _) => metadataCache
    case ("authorizer", _) => authorizer()
    case ("clusterId", _) => process().state.get("cluster_id").asText
    case ("brokerId", _) => config.brokerId
    case ("config", _) => config
    case ("quotas", _) => quotaManagers
  }

  val quotaManagers: QuotaManagers = only[QuotaManagers] {
    case ("produce", _) => quotas[ClientQuotaManager]("produce")
    case ("fetch", _) => quotas[ClientQuotaManager]("fetch")
    case ("request", _) => quotas[ClientRequestQuotaManager]("request")
    case ("controllerMutation", _) => quotas[ControllerMutationQuotaManager]("mutation")
    case ("leader", _) => throttle("leader")
    case ("follower", _) => throttle("follower")
    case ("alterLogDirs", _) => throttle("alterLogDirs")
  }

  private def throttle(kind: String): ReplicationQuotaManager = only[ReplicationQuotaManager] {
    case ("upperBound", _) => process().ask("throttle", kind).get("limit").asLong
    case ("isThrottled", Seq(tp: TopicPartition)) =>
      process().ask("is_throttled", kind, tp.topic, tp.partition).asBoolean
  }

  private def quotas[T <: AnyRef](kind: String)(implicit tag: ClassTag[T]): T = {
    val sensor = new Metrics().sensor(kind) // a lock for the tests, which read the metrics
    only[T] {
      case ("quota", Seq(user: KafkaPrincipal, clientId: String)) =>
        OwnQuotas.remember(user)
        quota(kind, user.getName, clientId)
      case ("quota", Seq(user: String, clientId: String)) => quota(kind, user, clientId)
      case ("getOrCreateQuotaSensors", Seq(_, clientId: String)) =>
        metrics().addThrottleTime(kind, "", clientId) // of a quota by client id
        ClientSensors(Map.empty, sensor, sensor)
      case ("exemptSensor", _) => sensor
    }
  }

  private def quota(kind: String, user: String, clientId: String): Quota = {
    val found = process().ask("quota", kind, user, clientId)
    Quota.upperBound(if (found.isNull) Long.MaxValue.toDouble else found.asDouble)
  }

  private def shown(tp: TopicPartition): JsonNode = process().ask("partition", tp.topic, tp.partition)

  private def logOf(tp: TopicPartition): Option[UnifiedLog] = {
    val log = shown(tp).get("log")
    if (log.isNull) None else Some(log).map(unifiedLog(tp, _))
  }

  /** The log of a partition, which a test may keep: it has the present state, or the last one. */
  private def unifiedLog(tp: TopicPartition, first: JsonNode): UnifiedLog = {
    def now: JsonNode = Option(shown(tp).get("log")).filterNot(_.isNull).getOrElse(first)
    def directory = new File(now.get("directory").asText)
    def call(name: String, arguments: Any*) =
      process().ask(Seq("log", name, tp.topic, tp.partition) ++ arguments: _*)
    only[UnifiedLog] {
    case ("dir", _) => directory
    case ("parentDir", _) => directory.getParent
    case ("topicPartition", _) => tp
    case ("topicId", _) => Option(now.get("topic_id")).filterNot(_.isNull).map(id => Uuid.fromString(id.asText))
    case ("logStartOffset", _) => now.get("start").asLong
    case ("logEndOffset", _) => now.get("end").asLong
    case ("highWatermark", _) => now.get("high_watermark").asLong
    case ("lastStableOffset", _) => now.get("last_stable_offset").asLong
    case ("logSegments", _) => segments(directory)
    case ("activeSegment", _) => segments(directory).asScala.last
    case ("leaderEpochCache", _) => Some(leaderEpochs(now.get("epochs")))
    case ("flush", _) => () // what a process has written is in the file, which tests read
    case ("size", _) => now.get("size").asLong
    case ("numberOfSegments", _) => now.get("segments").asInt
    case ("config", _) => logConfig(call("config"))
    case ("appendAsLeader$default$3", _) => AppendOrigin.CLIENT
    case ("appendAsLeader$default$4", _) => MetadataVersion.latestProduction
    case ("appendAsLeader$default$5", _) => RequestLocal.NoCaching
    case ("appendAsLeader$default$6", _) => VerificationGuard.SENTINEL
    case ("appendAsLeader", Seq(records: MemoryRecords, epoch: Integer, _*)) =>
      call("append", Base64.getEncoder.encodeToString(Utils.toArray(records.buffer)), epoch)
      null // no test reads it
    case ("updateHighWatermark", Seq(offset: java.lang.Long)) => call("high_watermark", offset).asLong
    case ("maybeIncrementLogStartOffset", Seq(offset: java.lang.Long, _)) => call("start", offset).asBoolean
    case ("deleteOldSegments", _) => call("delete_old_segments").asInt
    case ("truncateTo", Seq(offset: java.lang.Long)) => call("truncate", offset).asBoolean
    case ("legacyFetchOffsetsBefore", Seq(timestamp: java.lang.Long, limit: Integer)) =>
      call("offsets_before", timestamp, limit).elements().asScala.map(_.asLong).toSeq
    case ("fetchOffsetByTimestamp$default$2", _) => None
    case ("fetchOffsetByTimestamp", Seq(timestamp: java.lang.Long, _))
        if timestamp == ListOffsetsRequest.MAX_TIMESTAMP =>
      Option(call("max_timestamp")).filterNot(_.isNull).map(row => new FileRecords.TimestampAndOffset(
        row.get(0).asLong, row.get(1).asLong, Optional.of(Integer.valueOf(row.get(2).asInt))))
    case ("roll$default$1", _) => None
    case ("roll", _) =>
      if (process().ask("roll", tp.topic, tp.partition).asBoolean)
        throw new KafkaStorageException(s"the log directory of $tp is offline")
    case ("producerStateManager", _) => producers(now.get("producers"))
    }
  }

  /** Settings of a log; their values have the types of Kafka's. */
  private def logConfig(shown: JsonNode): LogConfig = {
    val overrides = shown.get("overrides").elements().asScala.map(_.asText).toSet.asJava
    new LogConfig(typed(shown.get("settings")), overrides)
  }

  private def typed(settings: JsonNode): util.Map[String, AnyRef] = {
    val text = settings.fields().asScala.map(each => each.getKey -> each.getValue.asText).toMap
    val known = text.removedAll(text.keySet -- LogConfig.configNames.asScala)
    new LogConfig(known.asJava).values.asInstanceOf[util.Map[String, AnyRef]]
      .asScala.filter(each => known.contains(each._1)).asJava
  }

  /** The broker's own settings of logs: those that Kafka has there, with the values of the process. */
  private def defaultLogConfig: LogConfig = {
    val values = typed(process().ask("default_log_config"))
    val names = config.extractLogConfigMap.keySet.asScala
    new LogConfig(names.map(name => name -> values.getOrDefault(name, null))
      .filter(_._2 != null).toMap.asJava)
  }

  private def segments(directory: File): util.List[LogSegment] =
    directory.listFiles.filter(_.getName.endsWith(".log")).sorted.map { file =>
      only[LogSegment] {
        case ("log", _) => FileRecords.open(file, false)
        case ("size", _) => file.length.toInt
        case ("read", Seq(from: java.lang.Long, _)) => read(FileRecords.open(file, false), from)
      }
    }.toList.asJava

  private def read(records: FileRecords, from: Long): FetchDataInfo =
    Option(records.searchForOffsetWithSize(from, 0)).map { first =>
      new FetchDataInfo(new LogOffsetMetadata(from), records.slice(first.position, Int.MaxValue))
    }.orNull

  private def leaderEpochs(rows: JsonNode): LeaderEpochFileCache = only[LeaderEpochFileCache] {
    case ("epochEntries", _) => rows.elements().asScala
      .map(row => new EpochEntry(row.get(0).asInt, row.get(1).asLong)).toList.asJava
  }

  private def producers(rows: JsonNode): ProducerStateManager = only[ProducerStateManager] {
    case ("activeProducers", _) =>
      val found = new util.HashMap[java.lang.Long, ProducerStateEntry]
      rows.elements().asScala.foreach { row =>
        val epoch = row.get(1).asInt.toShort
        val last = new BatchMetadata(row.get(2).asInt, row.get(3).asLong, 0, RecordBatch.NO_TIMESTAMP)
        found.put(row.get(0).asLong, new ProducerStateEntry(row.get(0).asLong, epoch, 0,
          RecordBatch.NO_TIMESTAMP, OptionalLong.empty, Optional.of(last)))
      }
      found
  }

  val logManager: LogManager = only[LogManager] {
    case ("getLog$default$2", _) => false
    case ("getLog", tp +: _) => logOf(tp.asInstanceOf[TopicPartition])
    case ("logsByTopic", Seq(topic: String)) => metadataCache.getTopicPartitions(topic).toSeq.flatMap(logOf)
    case ("liveLogDirs", _) => config.logDirs.map(new File(_).getAbsoluteFile)
    case ("isLogDirOnline", directory +: _) => !isOffline(directory.asInstanceOf[String])
    case ("directoryIdsSet", _) => directoryIds
    case ("cleaner", _) => cleaner
    case ("getOrCreateLog$default$2" | "getOrCreateLog$default$3", _) => false
    case ("getOrCreateLog$default$4" | "getOrCreateLog$default$5", _) => None
    case ("getOrCreateLog", tp +: _) => logOf(tp.asInstanceOf[TopicPartition]).get
    case ("currentDefaultConfig", _) => defaultLogConfig
    case ("initialDefaultConfig", _) => new LogConfig(util.Map.of("min.insync.replicas",
      process().ask("settings").get("min.insync.replicas").asText))
    case ("producerStateManagerConfig", _) =>
      val used = process().ask("settings")
      new ProducerStateManagerConfig(used.get("producer.id.expiration.ms").asInt,
        used.get("transaction.partition.verification.enable").asBoolean)
  }

  /** The log cleaner; what it has done is in the checkpoint files of its log directories. */
  private val cleaner: LogCleaner = only[LogCleaner] {
    case ("awaitCleaned$default$3", _) => 60000L
    case ("awaitCleaned", Seq(tp: TopicPartition, offset: java.lang.Long, waitMs: java.lang.Long)) =>
      val until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(waitMs)
      def isCleaned = config.logDirs.map(new File(_, "cleaner-offset-checkpoint")).filter(_.exists)
        .flatMap(file => new OffsetCheckpointFile(file, null).read().get(tp)).exists(_ >= offset)
      while (!isCleaned && System.nanoTime() < until) Thread.sleep(100)
      isCleaned
  }

  /** The ids of log directories, which they get with a migration to KRaft. */
  private def directoryIds: Set[Uuid] = config.logDirs.map(new File(_, "meta.properties"))
    .filter(_.exists).flatMap { file =>
      Option(Utils.loadProps(file.getPath).getProperty("directory.id")).map(Uuid.fromString)
    }.toSet

  val replicaManager: ReplicaManager = only[ReplicaManager] {
    case ("localLog" | "getLog", tp +: _) => logOf(tp.asInstanceOf[TopicPartition])
    case ("localLogOrException", tp +: _) => logOf(tp.asInstanceOf[TopicPartition]).get
    case ("onlinePartition", tp +: _) => partition(tp.asInstanceOf[TopicPartition])
    case ("getPartition", tp +: _) => partition(tp.asInstanceOf[TopicPartition])
      .map(HostedPartition.Online(_)).getOrElse(HostedPartition.None)
    case ("getPartitionOrException", tp +: _) => partition(tp.asInstanceOf[TopicPartition]).get
    case ("logManager", _) => logManager
    case ("metadataCache", _) => metadataCache
    case ("controllerEpoch", _) => process().ask("metadata").get("controller_epoch").asInt
    case ("checkpointHighWatermarks", _) =>
      process().ask("checkpointed_high_watermarks")
      ()
    case ("handleLogDirFailure$default$2", _) => true
    case ("handleLogDirFailure", directory +: _) =>
      process().ask("failed_directory", directory)
      ()
    case ("getLogEndOffsetLag", Seq(tp: TopicPartition, end: java.lang.Long, _)) =>
      math.max(logOf(tp).get.highWatermark - end, 0L)
  }

  /** The delegation tokens that the broker knows, without their secrets. */
  val tokenCache: DelegationTokenCache = only[DelegationTokenCache] {
    case ("tokens", _) => process().ask("tokens").elements().asScala.map { token =>
      val principal = (field: String) => SecurityUtils.parseKafkaPrincipal(token.get(field).asText)
      val renewers = token.get("renewers").elements().asScala
        .map(each => SecurityUtils.parseKafkaPrincipal(each.asText)).toList.asJava
      new TokenInformation(token.get("token_id").asText, principal("owner"), principal("requester"),
        renewers, token.get("issued_ms").asLong, token.get("max_lifetime_ends_ms").asLong,
        token.get("expires_ms").asLong)
    }.toList.asJava
  }

  private def isOffline(directory: String): Boolean =
    process().ask("offline_directories").elements().asScala.exists(_.asText == directory)

  /** Where a test reports a log directory as failed. */
  val logDirFailureChannel: LogDirFailureChannel = new LogDirFailureChannel(1) {
    override def hasOfflineLogDir(directory: String): Boolean = isOffline(directory)
    override def maybeAddOfflineLogDir(directory: String, message: String, error: IOException): Unit =
      process().ask("failed_directory", directory)
  }

  private def partition(tp: TopicPartition): Option[Partition] = {
    val found = shown(tp)
    val state = found.get("partition")
    val log = found.get("log")
    if (state.isNull || log.isNull) None
    else Some(only[Partition] {
      case ("topicPartition", _) => tp
      case ("leaderReplicaIdOpt", _) => Some(state.get("leader").asInt).filter(_ >= 0)
      case ("getLeaderEpoch", _) => state.get("leader_epoch").asInt
      case ("inSyncReplicaIds", _) => numbers(state.get("isr")).asScala.map(_.intValue).toSet
      case ("isLeader", _) => state.get("is_leader").asBoolean
      case ("leaderLogIfLocal", _) =>
        if (state.get("is_leader").asBoolean) Some(unifiedLog(tp, log)) else None
      case ("localLogOrException", _) => unifiedLog(tp, log)
    })
  }

  val groupCoordinator: GroupCoordinator = only[GroupCoordinator] {
    case ("groupMetadataTopicConfigs", _) =>
      val configs = new Properties
      configs.put("cleanup.policy", "compact")
      configs.put("compression.type", "producer")
      configs.put("segment.bytes", config.groupCoordinatorConfig.offsetsTopicSegmentBytes.toString)
      configs
    case ("partitionFor", group +: _) =>
      org.apache.kafka.common.utils.Utils.abs(group.hashCode) %
        config.groupCoordinatorConfig.offsetsTopicPartitions
  }

  val transactionCoordinator: TransactionCoordinator = only[TransactionCoordinator] {
    case ("partitionFor", id +: _) =>
      org.apache.kafka.common.utils.Utils.abs(id.hashCode) % config.transactionTopicPartitions
  }

  val controller: KafkaController = only[KafkaController] {
    case ("isActive", _) => zkClient().getControllerId.contains(config.brokerId)
    case ("brokerEpoch", _) => zkClient().getAllBrokerAndEpochsInCluster
      .collectFirst { case (broker, epoch) if broker.id == config.brokerId => epoch }.getOrElse(-1L)
    case ("activeControllerId", _) => zkClient().getControllerId.getOrElse(-1)
    case ("controllerContext", _) => context
    case ("controllerChannelManager", _) => channels
  }

  /** The controller's connections to the brokers, which a test closes. */
  private lazy val channels: ControllerChannelManager = {
    val found = only[ControllerChannelManager](PartialFunction.empty)
    val states = collection.mutable.HashMap.from(zkClient().getSortedBrokerList.map { id =>
      val client = only[NetworkClient] {
        case ("disconnect", _) =>
          process().ask("controller_disconnected", id)
          ()
      }
      id -> ControllerBrokerStateInfo(client, null, null, null, null, null, None)
    })
    val field = classOf[ControllerChannelManager].getDeclaredField("brokerStateInfo")
    field.setAccessible(true)
    field.set(found, states)
    found
  }

  /** Requests to the controller; the process sends a request for metadata. */
  val controllerRequests: NodeToControllerChannelManager = only[NodeToControllerChannelManager] {
    case ("sendRequest", Seq(_, handler: ControllerRequestCompletionHandler)) =>
      val error = process().ask("controller_asked").asText
      if (error.nonEmpty) throw new IllegalStateException(error)
      val response = new MetadataResponse(new MetadataResponseData, ApiKeys.METADATA.latestVersion)
      handler.onComplete(new ClientResponse(null, null, "controller", 0, 0, false, null, null, response))
  }

  private val context: ControllerContext = only[ControllerContext] {
    case ("topicIds", _) => mutableCopy(topicIds)
    case ("topicNames", _) => mutableCopy(topicIds.map(_.swap))
    case ("replicasInState", Seq(topic: String, state: AnyRef)) =>
      process().ask("replica_states", topic).elements().asScala
        .filter(_.get(2).asText == state.toString)
        .map(each => PartitionAndReplica(new TopicPartition(topic, each.get(0).asInt), each.get(1).asInt))
        .toSet
    case ("liveOrShuttingDownBrokers", _) => process().ask("live_brokers").elements().asScala
      .map(each => Broker(each.get(0).asInt, Seq.empty, None, features(each.get(2)))).toSet
    case ("liveBrokerIdAndEpochs", _) => process().ask("live_brokers").elements().asScala
      .map(each => each.get(0).asInt -> each.get(1).asLong).toMap
    case ("allTopics", _) => collection.mutable.Set.from(zkClient().getAllTopicsInCluster())
  }

  private def features(rows: JsonNode): Features[SupportedVersionRange] =
    Features.supportedFeatures(rows.fields().asScala.map { each =>
      each.getKey -> new SupportedVersionRange(each.getValue.get(0).asInt.toShort,
        each.getValue.get(1).asInt.toShort)
    }.toMap.asJava)

  /** The ZooKeeper session of the process. */
  val session: ZooKeeper = only[ZooKeeper] {
    case ("getSessionId", _) => process().ask("session").get(0).asLong
    case ("getSessionPasswd", _) =>
      Base64.getDecoder.decode(process().ask("session").get(1).asText)
  }

  /** The features of the process; a test adds some. */
  val brokerFeatures: BrokerFeatures = only[BrokerFeatures] {
    case ("supportedFeatures", _) => features(process().ask("supported_features", new util.HashMap))
    case ("setSupportedFeatures", Seq(added)) =>
      val rows = new util.HashMap[String, util.List[Integer]]
      added.asInstanceOf[Features[SupportedVersionRange]].features.forEach { (name, range) =>
        rows.put(name, util.List.of(Integer.valueOf(range.min.toInt), Integer.valueOf(range.max.toInt)))
      }
      process().ask("supported_features", rows)
      ()
  }

  private def topicIds: Map[String, Uuid] =
    zkClient().getTopicIdsForTopics(zkClient().getAllTopicsInCluster()).toMap

  private def mutableCopy[K, V](from: Map[K, V]): collection.mutable.Map[K, V] =
    collection.mutable.Map.from(from)
}
