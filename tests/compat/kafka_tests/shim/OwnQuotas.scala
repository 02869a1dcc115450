package ottla.shim

import com.fasterxml.jackson.databind.JsonNode
import org.apache.kafka.common.{Cluster, Node, PartitionInfo, Reconfigurable}
import org.apache.kafka.common.security.auth.KafkaPrincipal
import org.apache.kafka.server.quota.{ClientQuotaCallback, ClientQuotaEntity, ClientQuotaType}
import org.apache.kafka.server.quota.ClientQuotaEntity.{ConfigEntity, ConfigEntityType}

import java.util
import java.util.concurrent.ConcurrentHashMap
import scala.jdk.CollectionConverters._

/** The quota callback of a test, for one broker.
  *
  * Questions: `quota_tags`: kind, user, client id; the answer has the tags, and whether limits are to be asked for
  * again. `quota_limit`: kind, tags; the answer is the
  * limit, or null. `quota_set`: kind, user and client id, one of which may be null, and the limit, or null for none.
  * `quota_cluster`: leaders by topic and
  * partition, -1 without one; the answer is whether limits changed. `quota_settings`: all settings of the broker.
  */
class OwnQuotas(name: String, settings: util.Map[String, String]) {
  private val callback =
    Class.forName(name).getDeclaredConstructor().newInstance().asInstanceOf[ClientQuotaCallback]
  callback.configure(settings)
  private var shown: util.Map[String, String] = settings

  def answer(question: JsonNode): JsonNode = {
    val values = Launcher.json.getNodeFactory
    def kind = ClientQuotaType.valueOf(question.get(1).asText)
    question.get(0).asText match {
      case "quota_tags" =>
        val user = OwnQuotas.principal(question.get(2).asText)
        val tags = callback.quotaMetricTags(kind, user, question.get(3).asText)
        Launcher.json.createArrayNode().add(Launcher.json.valueToTree[JsonNode](tags))
          .add(callback.quotaResetRequired(kind))
      case "quota_limit" =>
        val limit = callback.quotaLimit(kind, Plugins.texts(question.get(2)))
        if (limit == null) values.nullNode else values.numberNode(limit.doubleValue)
      case "quota_set" =>
        val entity = OwnQuotas.entity(question.get(2).textValue, question.get(3).textValue)
        if (question.get(4).isNull) callback.removeQuota(kind, entity)
        else callback.updateQuota(kind, entity, question.get(4).asDouble)
        values.nullNode
      case "quota_cluster" => values.booleanNode(callback.updateClusterMetadata(OwnQuotas.cluster(question.get(1))))
      case "quota_settings" =>
        reconfigure(Plugins.texts(question.get(1)))
        values.nullNode
    }
  }

  /** As in Kafka, only a change of the settings that the callback names. */
  private def reconfigure(now: util.Map[String, String]): Unit = callback match {
    case own: Reconfigurable if own.reconfigurableConfigs.asScala.exists(each => now.get(each) != shown.get(each)) =>
      shown = now
      own.reconfigure(now)
    case _ => ()
  }

  def close(): Unit = callback.close()
}

object OwnQuotas {
  private val principals = new ConcurrentHashMap[String, KafkaPrincipal]

  /** Keeps the principal of a user, of a class of the test; a broker process has its name. */
  def remember(principal: KafkaPrincipal): Unit = principals.put(principal.getName, principal)

  private def principal(name: String): KafkaPrincipal =
    principals.getOrDefault(name, new KafkaPrincipal(KafkaPrincipal.USER_TYPE, name))

  private def entity(user: String, clientId: String): ClientQuotaEntity = {
    def part(shown: String, kind: ConfigEntityType, default: ConfigEntityType) = Option(shown).map { text =>
      new ConfigEntity {
        override def name: String = if (text == "<default>") "" else text
        override def entityType: ConfigEntityType = if (text == "<default>") default else kind
      }
    }
    val parts = part(user, ConfigEntityType.USER, ConfigEntityType.DEFAULT_USER).toList ++
      part(clientId, ConfigEntityType.CLIENT_ID, ConfigEntityType.DEFAULT_CLIENT_ID)
    () => parts.asJava.asInstanceOf[util.List[ConfigEntity]]
  }

  private def cluster(topics: JsonNode): Cluster = {
    val partitions = topics.fields().asScala.flatMap { topic =>
      topic.getValue.fields().asScala.map { each =>
        val leader = Option(each.getValue.asInt).filter(_ >= 0).map(new Node(_, "", -1)).orNull
        new PartitionInfo(topic.getKey, each.getKey.toInt, leader, Array.empty, Array.empty)
      }
    }.toList.asJava
    new Cluster("", util.List.of(), partitions, util.Set.of(), util.Set.of())
  }
}
