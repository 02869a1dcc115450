import java.io.IOException;
import java.io.OutputStreamWriter;
import java.io.Writer;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.TreeMap;
import java.util.zip.GZIPOutputStream;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.TopicPartition;

/**
 * What Kafka's assignors make of random groups that go through several rebalances: members come and
 * go, topics grow, subscriptions change, some members slept through a generation. Every line of the
 * file holds the subscriptions as they go over the wire and what each member was given.
 */
public final class GoldenAssignments {
    private static final int GROUPS = 50;
    private static final int REBALANCES = 6;

    private static Writer out;

    public static void main(String[] arguments) throws IOException {
        try (Writer writer = new OutputStreamWriter(
                new GZIPOutputStream(Files.newOutputStream(Path.of(arguments[0]))), StandardCharsets.US_ASCII)) {
            out = writer;
            for (String name : List.of("range", "roundrobin", "sticky", "cooperative-sticky")) {
                for (int group = 0; group < GROUPS; group++) {
                    new Group(name, new Random(group * 0x9E3779B97F4A7C15L)).run();
                }
            }
        }
    }

    private static AbstractPartitionAssignor assignor(String name) {
        switch (name) {
            case "range": return new RangeAssignor();
            case "roundrobin": return new RoundRobinAssignor();
            case "sticky": return new StickyAssignor();
            default: return new CooperativeStickyAssignor();
        }
    }

    private static final class Member {
        List<String> topics;
        List<TopicPartition> partitions = new ArrayList<>();
        int generation = -1;
        Optional<String> instance = Optional.empty();
    }

    private static final class Group {
        private final String name;
        private final Random random;
        private final boolean sameTopics;
        private final Map<String, Integer> counts = new TreeMap<>();
        private final Map<String, Member> members = new TreeMap<>();
        private int made;

        Group(String name, Random random) {
            this.name = name;
            this.random = random;
            this.sameTopics = random.nextInt(3) == 0;
            for (int topic = 0; topic <= random.nextInt(4); topic++) {
                counts.put("topic-" + topic, 1 + random.nextInt(9));
            }
            for (int member = 0; member <= random.nextInt(5); member++) {
                join();
            }
        }

        private void join() {
            Member member = new Member();
            member.topics = chosenTopics();
            if (random.nextInt(4) == 0) {
                member.instance = Optional.of("instance-" + random.nextInt(1000) + "-" + made);
            }
            members.put("consumer-" + Long.toHexString(random.nextLong()) + "-" + made++, member);
        }

        private List<String> chosenTopics() {
            List<String> topics = new ArrayList<>(counts.keySet());
            if (!sameTopics) {
                topics.removeIf(topic -> topics.size() > 1 && random.nextInt(3) == 0);
            }
            if (topics.isEmpty()) {
                topics.add("topic-0"); // the sticky assignors stumble over members that want nothing
            }
            if (random.nextInt(8) == 0 && !sameTopics) {
                topics.add("missing");
            }
            return topics;
        }

        void run() throws IOException {
            for (int generation = 1; generation <= REBALANCES; generation++) {
                Map<String, Subscription> subscriptions = new HashMap<>();
                members.forEach((id, member) -> subscriptions.put(id, subscription(member)));
                Map<String, List<TopicPartition>> result;
                try {
                    result = assignor(name).assign(existing(), subscriptions);
                } catch (NullPointerException bug) {
                    return; // Kafka's, when a partition's earlier owner has nothing left to balance
                }
                write(subscriptions, result);
                for (Map.Entry<String, Member> entry : members.entrySet()) {
                    if (random.nextInt(10) > 0) {
                        entry.getValue().partitions = result.get(entry.getKey());
                        entry.getValue().generation = generation;
                    }
                }
                change();
            }
        }

        private Map<String, Integer> existing() {
            HashSet<String> wanted = new HashSet<>();
            members.values().forEach(member -> wanted.addAll(member.topics));
            Map<String, Integer> existing = new HashMap<>(counts);
            existing.keySet().retainAll(wanted);
            return existing;
        }

        private Subscription subscription(Member member) {
            ByteBuffer userData = null;
            List<TopicPartition> owned = Collections.emptyList();
            int generation = member.generation;
            if (name.equals("sticky")) {
                StickyAssignor own = new StickyAssignor();
                if (generation >= 0) {
                    own.onAssignment(new Assignment(member.partitions), metadata(generation));
                }
                userData = own.subscriptionUserData(new HashSet<>(member.topics));
            } else if (name.equals("cooperative-sticky")) {
                CooperativeStickyAssignor own = new CooperativeStickyAssignor();
                own.onAssignment(new Assignment(member.partitions), metadata(generation));
                userData = own.subscriptionUserData(new HashSet<>(member.topics));
                owned = member.partitions;
            }
            Subscription subscription = new Subscription(
                    member.topics, userData, owned, generation, Optional.empty());
            member.instance.ifPresent(id -> subscription.setGroupInstanceId(Optional.of(id)));
            return subscription;
        }

        private ConsumerGroupMetadata metadata(int generation) {
            return new ConsumerGroupMetadata("group", generation, "member", Optional.empty());
        }

        private void change() {
            switch (random.nextInt(6)) {
                case 0:
                case 1:
                    join();
                    break;
                case 2:
                    if (members.size() > 1) {
                        List<String> ids = new ArrayList<>(members.keySet());
                        members.remove(ids.get(random.nextInt(ids.size())));
                    }
                    break;
                case 3:
                    List<String> topics = new ArrayList<>(counts.keySet());
                    counts.merge(topics.get(random.nextInt(topics.size())), 1 + random.nextInt(4), Integer::sum);
                    break;
                case 4:
                    counts.put("topic-" + counts.size(), 1 + random.nextInt(9));
                    members.values().forEach(member -> member.topics = chosenTopics());
                    break;
                default:
                    break;
            }
        }

        private void write(Map<String, Subscription> subscriptions, Map<String, List<TopicPartition>> result)
                throws IOException {
            StringBuilder line = new StringBuilder("{\"assignor\": \"" + name + "\", \"counts\": {");
            String separator = "";
            for (Map.Entry<String, Integer> entry : new TreeMap<>(existing()).entrySet()) {
                line.append(separator).append("\"" + entry.getKey() + "\": " + entry.getValue());
                separator = ", ";
            }
            line.append("}, \"members\": {");
            separator = "";
            for (String id : members.keySet()) {
                Subscription subscription = subscriptions.get(id);
                if (subscription.userData() != null) {
                    subscription.userData().rewind();
                }
                String instance = subscription.groupInstanceId().map(value -> "\"" + value + "\"").orElse("null");
                List<String> given = new ArrayList<>();
                result.get(id).forEach(tp -> given.add("[\"" + tp.topic() + "\", " + tp.partition() + "]"));
                Collections.sort(given);
                line.append(separator).append("\"" + id + "\": [");
                line.append("\"" + hex(ConsumerProtocol.serializeSubscription(subscription)) + "\", ");
                line.append(instance + ", [" + String.join(", ", given) + "], ");
                line.append("\"" + hex(ConsumerProtocol.serializeAssignment(new Assignment(result.get(id)))) + "\"]");
                separator = ", ";
            }
            out.write(line + "}}\n");
        }
    }

    private static String hex(ByteBuffer buffer) {
        StringBuilder digits = new StringBuilder();
        for (int i = buffer.position(); i < buffer.limit(); i++) {
            digits.append(String.format("%02x", buffer.get(i)));
        }
        return digits.toString();
    }
}
