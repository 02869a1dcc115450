import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;

import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A share consumer that does with each record what its value says, and prints what happened.
 *
 * Arguments: bootstrap servers, topic, group, the number of records to finish, seconds to try.
 * Values: "accept-N"; "release-N": released at the first delivery, then accepted; "reject-N";
 * "exhaust-N": released at every delivery; "warm-N": accepted, not counted. One JSON object a line.
 */
public final class ShareWork {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[2]);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("max.poll.records", "10");
        int wanted = Integer.parseInt(arguments[3]);
        long end = System.currentTimeMillis() + 1000L * Integer.parseInt(arguments[4]);
        int finished = 0;
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(
                settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(arguments[1]));
            while (finished < wanted && System.currentTimeMillis() < end) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(500));
                for (ConsumerRecord<String, String> record : records) {
                    int count = record.deliveryCount().orElse((short) -1);
                    AcknowledgeType type = decide(record.value(), count);
                    System.out.println("{\"name\":\"record\",\"offset\":" + record.offset()
                        + ",\"value\":\"" + record.value() + "\",\"count\":" + count
                        + ",\"type\":\"" + type + "\"}");
                    consumer.acknowledge(record, type);
                    boolean isLast = type != AcknowledgeType.RELEASE || count >= 5;
                    isLast &= !record.value().startsWith("warm");
                    finished += isLast ? 1 : 0;
                }
                if (!records.isEmpty()) {
                    print(consumer.commitSync());
                }
            }
        }
        System.out.println("{\"name\":\"done\",\"finished\":" + finished + "}");
    }

    private static AcknowledgeType decide(String value, int count) {
        if (value.startsWith("reject")) {
            return AcknowledgeType.REJECT;
        }
        boolean isReleased = value.startsWith("exhaust") || value.startsWith("release") && count == 1;
        return isReleased ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
    }

    private static void print(Map<TopicIdPartition, Optional<KafkaException>> result) {
        result.forEach((partition, error) -> System.out.println("{\"name\":\"commit\",\"partition\":"
            + partition.partition() + ",\"error\":\""
            + error.map(each -> each.getClass().getSimpleName()).orElse("") + "\"}"));
    }
}
