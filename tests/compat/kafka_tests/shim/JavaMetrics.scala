package ottla.shim

import com.fasterxml.jackson.databind.JsonNode
import com.yammer.metrics.core.{Histogram, Meter, Metric, MetricName, MetricsRegistry}
import org.apache.kafka.common.metrics.{Gauge, KafkaMetric, MetricConfig, Metrics, Quota}
import org.apache.kafka.common.utils.{Sanitizer, Time}
import org.apache.kafka.common.{MetricName => KafkaMetricName}
import org.apache.kafka.server.metrics.KafkaYammerMetrics

import java.util
import java.util.concurrent.{ConcurrentHashMap, TimeUnit}
import scala.jdk.CollectionConverters._

/** The metrics of a broker process that tests read as Kafka's; a stopped broker has none. */
class JavaMetrics(process: () => Option[BrokerProcess]) extends Metrics {
  @volatile private var averages = Map.empty[KafkaMetricName, Double]
  private var listeners = Set.empty[String]

  Seq("expired-connections-killed-count", "failed-reauthentication-total",
    "successful-authentication-total", "failed-authentication-total").foreach { name =>
    val gauge: Gauge[Double] = (_, _) => JavaMetrics.value(process(), name)
    addMetric(metricName(name, "socket-server-metrics"), gauge)
  }

  Seq("Leader" -> "leader", "Follower" -> "follower").foreach { case (side, kind) =>
    val gauge: Gauge[Double] = (_, _) =>
      process().filter(_.isAlive).map(_.ask("throttle", kind).get("rate").asDouble).getOrElse(0.0)
    addMetric(metricName("byte-rate", s"${side}Replication"), gauge)
  }

  override def metrics(): util.Map[KafkaMetricName, KafkaMetric] = {
    // `Metrics` calls it before this class is initialized.
    if (averages != null) {
      refresh()
      refreshListeners()
    }
    super.metrics()
  }

  /** The open listeners, each of which has metrics of its own. */
  private def refreshListeners(): Unit = synchronized {
    val open = process().filter(_.isAlive).map(_.ports.fieldNames().asScala.toSet).getOrElse(Set.empty)
    def nameOf(listener: String) = metricName("connection-count", "socket-server-metrics", "", "listener", listener)
    (listeners -- open).foreach(each => removeMetric(nameOf(each)))
    (open -- listeners).foreach { each =>
      val gauge: Gauge[Double] = (_, _) => Double.NaN
      addMetric(nameOf(each), gauge)
    }
    listeners = open
  }

  /** The quota of a user for changes of topics is a metric of its own name, which Kafka makes late. */
  override def metric(name: KafkaMetricName): KafkaMetric = {
    if (name.name != "tokens") return super.metric(name)
    val found = process().filter(_.isAlive).map(_.ask("mutation_quota", name.tags.get("user")))
    found.filterNot(_.isNull).map { quota =>
      val gauge: Gauge[Double] = (_, _) => Double.NaN
      val used = new MetricConfig().quota(Quota.upperBound(quota.get(0).asDouble))
        .samples(quota.get(1).asInt).timeWindow(quota.get(2).asLong, TimeUnit.MILLISECONDS)
      new KafkaMetric(new Object, name, gauge, used, Time.SYSTEM)
    }.orNull
  }

  /** The throttle times by client, of which tests ask in a loop. */
  private def refresh(): Unit = synchronized {
    process().filter(_.isAlive).foreach { running =>
      val found = running.ask("throttles")
      val exempt = metricName("exempt-request-time", "Request", "") -> found.get("exempt_percent").asDouble
      averages = found.get("times").elements().asScala.map(throttleTime).toMap + exempt
      averages.keys.foreach { name =>
        if (!super.metrics().containsKey(name)) {
          val gauge: Gauge[Double] = (_, _) => averages.getOrElse(name, Double.NaN)
          addMetric(name, gauge)
        }
      }
    }
  }

  /** A client that has a quota has this metric before it is throttled. */
  def addThrottleTime(kind: String, user: String, clientId: String): Unit = synchronized {
    val name = throttleTime(kind, user, clientId)
    if (!super.metrics().containsKey(name)) {
      val gauge: Gauge[Double] = (_, _) => averages.getOrElse(name, Double.NaN)
      addMetric(name, gauge)
    }
  }

  private def throttleTime(kind: String, user: String, clientId: String): KafkaMetricName =
    metricName("throttle-time", kind.capitalize, "", "user", Sanitizer.sanitize(user), "client-id", clientId)

  /** The tags of a client are its user and client id, or those that a quota callback gave it. */
  private def throttleTime(row: JsonNode): (KafkaMetricName, Double) = {
    val tags = Plugins.texts(row.get(1))
    tags.computeIfPresent("user", (_, user) => Sanitizer.sanitize(user))
    val name = metricName("throttle-time", row.get(0).asText.capitalize, "", tags)
    name -> (if (row.get(2).isNull) Double.NaN else row.get(2).asDouble)
  }

  /** Of clients with these tags, which the name ends with: their throttle times, or their rate. */
  override def removeSensor(name: String): Unit = {
    process().filter(_.isAlive).foreach(_.ask("removed_sensor", name))
    super.removeSensor(name)
  }
}

/** Kafka's Yammer metrics that tests read. All brokers of a JVM share them. */
object JavaMetrics {
  private val running = ConcurrentHashMap.newKeySet[BrokerProcess]

  def value(process: Option[BrokerProcess], name: String): Double =
    process.filter(_.isAlive).map(_.ask("metrics").get(name).asDouble).getOrElse(0.0)

  private def values(name: String): Iterable[Double] =
    running.asScala.map(each => value(Some(each), name))

  private def throttle(kind: String): Histogram = Internals.only[Histogram] {
    case ("max", _) => values(s"longest-$kind-throttle").maxOption.getOrElse(0.0)
  }

  private def meter(shown: String): Meter = Internals.only[Meter] {
    case ("count", _) => values(shown).sum.toLong
    case ("stop", _) => ()
  }

  /** Of conversions of records: the process has no number of requests, but what grows with each. */
  private def conversions(shown: String): Histogram = Internals.only[Histogram] {
    case ("count", _) => math.ceil(values(shown).sum).toLong
  }

  private val shared: Map[MetricName, Metric] = Map(
    name("kafka.controller", "ControllerStats", "UncleanLeaderElectionsPerSec") ->
      meter("unclean-leader-elections"),
    name("kafka.server", "BrokerTopicMetrics", "FetchMessageConversionsPerSec") -> meter("fetch-conversions"),
    name("kafka.server", "BrokerTopicMetrics", "ProduceMessageConversionsPerSec") -> meter("produce-conversions"),
    name("kafka.server", "BrokerTopicMetrics", "InvalidMessageCrcRecordsPerSec") -> meter("corrupt-appends"),
    name("kafka.network", "RequestMetrics", "MessageConversionsTimeMs", ",request=Fetch") ->
      conversions("fetch-conversion-microseconds"),
    name("kafka.network", "RequestMetrics", "TemporaryMemoryBytes", ",request=Fetch") ->
      conversions("fetch-conversion-bytes"),
    name("kafka.network", "RequestMetrics", "ThrottleTimeMs", ",request=Produce") -> throttle("produce"),
    name("kafka.network", "RequestMetrics", "ThrottleTimeMs", ",request=FetchConsumer") -> throttle("fetch"),
  )

  private def name(group: String, kind: String, name: String, tags: String = ""): MetricName =
    new MetricName(group, kind, name, null, s"$group:type=$kind,name=$name$tags")

  /** Shows the metrics of a process, with those of the others. */
  def add(process: BrokerProcess): Unit = synchronized {
    if (running.isEmpty) {
      val put = classOf[MetricsRegistry].getDeclaredMethod("getOrAdd", classOf[MetricName], classOf[Metric])
      put.setAccessible(true)
      shared.foreach { case (name, metric) => put.invoke(KafkaYammerMetrics.defaultRegistry, name, metric) }
    }
    running.add(process)
  }

  def remove(process: BrokerProcess): Unit = synchronized {
    running.remove(process)
    if (running.isEmpty) shared.keys.foreach(KafkaYammerMetrics.defaultRegistry.removeMetric)
  }
}
