import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;

/** Apache Kafka's Java client against one broker: a line for each feature, see ../README.md. */
public class Compat extends Harness {
    public static void main(String[] arguments) {
        check("connect", () -> get(ADMIN.listTopics().names()));
        produce();
        consume();
        groups();
        transactions();
        admin();
        ADMIN.close(Duration.ofSeconds(5));
        System.exit(0);
    }

    static void roundTrip(String name, Object... pairs) throws Exception {
        String to = create(name, 1);
        var sent = numbered(to, 0, 300, 1);
        send(sent, pairs);
        var rows = read(to, 1, 300);
        for (int n = 0; n < 300; n++) {
            equal(rows.get(n).offset(), (long) n);
            equal(new String(rows.get(n).value()), new String(sent.get(n).value()));
        }
    }

    static void produce() {
        check("create-topic", () -> create("created", 3));
        check("list-topics", () -> {
            var found = get(ADMIN.describeTopics(Set.of(topic("created"))).allTopicNames());
            equal(found.get(topic("created")).partitions().size(), 3);
        });
        check("auto-create", () -> send(List.of(new ProducerRecord<>(topic("auto"), bytes("v")))));
        for (String acks : List.of("0", "1", "all")) {
            check("acks-" + acks, () -> roundTrip("acks" + acks, "acks", acks, "enable.idempotence", "false"));
        }
        for (String codec : List.of("gzip", "snappy", "lz4", "zstd")) {
            check("codec-" + codec, () -> roundTrip(codec, "compression.type", codec, "linger.ms", "5"));
        }
        check("idempotent", () -> roundTrip("idempotent", "enable.idempotence", "true"));
        check("headers", () -> {
            String to = create("headers", 1);
            var record = new ProducerRecord<byte[], byte[]>(to, bytes("v"));
            record.headers().add("n", bytes("1")).add("n", bytes("2")).add("none", null);
            record.headers().add("grün", new byte[] {0, -1});
            send(List.of(record));
            var found = read(to, 1, 1).get(0).headers().toArray();
            equal(Arrays.asList(found), Arrays.asList(record.headers().toArray()));
            equal(found[3], new RecordHeader("grün", new byte[] {0, -1}));
        });
        check("null-values", () -> {
            String to = create("null", 1);
            send(List.of(new ProducerRecord<>(to, null, bytes("v")), new ProducerRecord<>(to, bytes("k"), null)));
            var rows = read(to, 1, 2);
            equal(rows.get(0).key() == null && rows.get(1).value() == null, true);
        });
        check("large-record", () -> {
            String to = create("large", 1);
            byte[] value = bytes("0123456789abcdef".repeat(48 << 10));
            send(List.of(new ProducerRecord<>(to, value)));
            equal(Arrays.equals(read(to, 1, 1).get(0).value(), value), true);
        });
    }

    static void consume() {
        check("consume", () -> {
            String to = create("consume", 3);
            send(numbered(to, 0, 600, 3));
            var rows = read(to, 3, 600);
            for (int partition = 0; partition < 3; partition++) {
                int wanted = partition;
                var mine = rows.stream().filter(row -> row.partition() == wanted).map(row -> row.offset()).toList();
                equal(mine, IntStream.range(0, 200).mapToObj(n -> (long) n).toList());
            }
        });
        check("list-offsets", () -> {
            var place = new TopicPartition(topic("consume"), 1);
            equal(get(ADMIN.listOffsets(Map.of(place, OffsetSpec.latest())).partitionResult(place)).offset(), 200L);
            equal(get(ADMIN.listOffsets(Map.of(place, OffsetSpec.maxTimestamp())).partitionResult(place)).offset() >= 0, true);
        });
        check("seek-by-time", () -> {
            String to = create("time", 1);
            send(IntStream.range(0, 10)
                .mapToObj(n -> new ProducerRecord<byte[], byte[]>(to, 0, 1_700_000_000_000L + n * 1000, null, bytes("v")))
                .toList());
            try (var consumer = consumer()) {
                var place = new TopicPartition(to, 0);
                equal(consumer.offsetsForTimes(Map.of(place, 1_700_000_004_500L)).get(place).offset(), 5L);
            }
        });
    }

    static void readAsGroup(String group, Object... pairs) {
        try (var member = member(group, topic("consume"), pairs)) {
            var keys = poll(member, 600).stream().map(row -> new String(row.key())).collect(Collectors.toSet());
            equal(keys.size(), 600);
            member.commitSync();
        }
    }

    static void share(String group, Object... pairs) throws Exception {
        try (var first = member(group, topic("share"), pairs)) {
            until(() -> held(first).equals(List.of(4)), "the first member has not all");
            try (var second = member(group, topic("share"), pairs)) {
                until(() -> held(first, second).equals(List.of(2, 2)), "not shared");
            }
            until(() -> held(first).equals(List.of(4)), "the first member has not all again");
        }
    }

    static void groups() {
        check("group", () -> readAsGroup("g", "group.protocol", "classic"));
        check("group-commit", () -> {
            String to = create("commit", 1);
            for (int first : new int[] {0, 50}) {
                send(numbered(to, first, 50, 1));
                try (var member = member("gc", to)) {
                    equal(new String(poll(member, 50).get(0).key()), "" + first);
                    member.commitSync();
                }
            }
        });
        check("group-rebalance", () -> {
            create("share", 4);
            share("gr", "heartbeat.interval.ms", "500");
        });
        check("group-cooperative", () -> share("gx", "heartbeat.interval.ms", "500", "partition.assignment.strategy",
            "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"));
        check("static-member", () -> {
            for (int n = 0; n < 2; n++) {
                try (var member = member("gs", topic("share"), "group.instance.id", "one")) {
                    until(() -> held(member).equals(List.of(4)), "no assignment");
                }
            }
            var found = get(ADMIN.describeConsumerGroups(Set.of(topic("gs"))).all()).get(topic("gs"));
            equal(found.members().stream().map(each -> each.groupInstanceId()).toList(), List.of(Optional.of("one")));
        });
        check("group-consumer-protocol", () -> readAsGroup("g848", "group.protocol", "consumer"));
    }

    static void transactions() {
        check("txn-commit", () -> {
            String to = create("txn", 1);
            try (var producer = producer("transactional.id", topic("t"))) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(to, bytes("kept-1")));
                producer.commitTransaction();
            }
            equal(new String(read(to, 1, 1, "isolation.level", "read_committed").get(0).value()), "kept-1");
        });
        check("txn-abort", () -> {
            String to = topic("txn");
            try (var producer = producer("transactional.id", topic("t"))) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(to, bytes("dropped"))).get();
                producer.abortTransaction();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(to, bytes("kept-2")));
                producer.commitTransaction();
            }
            equal(new String(read(to, 1, 2, "isolation.level", "read_committed").get(1).value()), "kept-2");
            equal(new String(read(to, 1, 3).get(1).value()), "dropped");
        });
        check("txn-offsets", () -> {
            try (var member = member("gt", topic("consume")); var producer = producer("transactional.id", topic("to"))) {
                poll(member, 600);
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic("txn"), bytes("kept-3")));
                var positions = member.assignment().stream()
                    .collect(Collectors.toMap(place -> place, place -> new OffsetAndMetadata(member.position(place))));
                producer.sendOffsetsToTransaction(positions, member.groupMetadata());
                producer.commitTransaction();
                long sum = member.committed(member.assignment()).values().stream().mapToLong(each -> each.offset()).sum();
                equal(sum, 600L);
            }
        });
        check("txn-fencing", () -> {
            var older = producer("transactional.id", topic("f"));
            var newer = producer("transactional.id", topic("f"));
            older.initTransactions();
            older.beginTransaction();
            newer.initTransactions();
            try {
                older.send(new ProducerRecord<>(topic("txn"), bytes("late")));
                older.commitTransaction();
                throw new AssertionError("the older producer was not fenced");
            } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
                newer.close();
                older.close(Duration.ZERO);
            }
        });
        check("txn-admin", () -> {
            try (var producer = producer("transactional.id", topic("ta"))) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic("txn"), 0, null, bytes("open"))).get();
                var found = get(ADMIN.describeTransactions(Set.of(topic("ta"))).description(topic("ta")));
                equal(found.state(), TransactionState.ONGOING);
                var place = new TopicPartition(topic("txn"), 0);
                var producers = get(ADMIN.describeProducers(Set.of(place)).partitionResult(place)).activeProducers();
                equal(producers.stream().anyMatch(each -> each.currentTransactionStartOffset().isPresent()), true);
                producer.commitTransaction();
            }
        });
    }

    static String topicConfig(String name) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic("consume"));
        return get(ADMIN.describeConfigs(Set.of(resource)).all()).get(resource).get(name).value();
    }

    static Map<TopicPartition, OffsetAndMetadata> groupOffsets() throws Exception {
        return get(ADMIN.listConsumerGroupOffsets(topic("g")).partitionsToOffsetAndMetadata());
    }

    static void admin() {
        var first = new TopicPartition(topic("consume"), 0);
        var second = new TopicPartition(topic("consume"), 1);
        check("describe-cluster", () -> {
            var found = ADMIN.describeCluster();
            equal(get(found.nodes()).size(), 1);
            equal(get(found.controller()).id(), get(found.nodes()).iterator().next().id());
            equal(get(found.clusterId()).isEmpty(), false);
        });
        check("describe-configs", () -> {
            equal(topicConfig("cleanup.policy"), "delete");
            var broker = new ConfigResource(ConfigResource.Type.BROKER, "0");
            equal(get(ADMIN.describeConfigs(Set.of(broker)).all()).get(broker).get("log.dirs").value().isEmpty(), false);
        });
        check("alter-configs", () -> {
            var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic("consume"));
            var change = new AlterConfigOp(new ConfigEntry("retention.ms", "1234567890"), AlterConfigOp.OpType.SET);
            get(ADMIN.incrementalAlterConfigs(Map.of(resource, List.of(change))).all());
            until(() -> topicConfig("retention.ms").equals("1234567890"), "the change is not seen");
        });
        check("create-partitions", () -> {
            get(ADMIN.createPartitions(Map.of(topic("created"), NewPartitions.increaseTo(5))).all());
            until(() -> get(ADMIN.describeTopics(Set.of(topic("created"))).allTopicNames())
                .get(topic("created")).partitions().size() == 5, "not seen");
        });
        check("delete-records", () -> {
            var place = new TopicPartition(topic("consume"), 2);
            var done = ADMIN.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(150)));
            equal(get(done.lowWatermarks().get(place)).lowWatermark(), 150L);
        });
        check("list-groups", () -> equal(
            get(ADMIN.listConsumerGroups().all()).stream().anyMatch(each -> each.groupId().equals(topic("g"))), true));
        check("describe-group", () -> {
            try (var member = member("gd", topic("share"))) {
                until(() -> held(member).equals(List.of(4)), "no assignment");
                var found = get(ADMIN.describeConsumerGroups(Set.of(topic("gd"))).all()).get(topic("gd"));
                equal(found.members().iterator().next().assignment().topicPartitions().size(), 4);
            }
        });
        check("group-offsets", () -> equal(groupOffsets().get(second).offset(), 200L));
        check("reset-offsets", () -> {
            get(ADMIN.alterConsumerGroupOffsets(topic("g"), Map.of(first, new OffsetAndMetadata(17))).all());
            equal(groupOffsets().get(first).offset(), 17L);
        });
        check("delete-offsets", () -> {
            get(ADMIN.deleteConsumerGroupOffsets(topic("g"), Set.of(second)).all());
            equal(groupOffsets().containsKey(second), false);
        });
        check("delete-group", () -> get(ADMIN.deleteConsumerGroups(Set.of(topic("g"))).all()));
        check("log-dirs", () -> {
            var found = get(ADMIN.describeLogDirs(Set.of(0)).allDescriptions()).get(0).values();
            equal(found.stream().anyMatch(each -> each.replicaInfos().containsKey(first)), true);
        });
        check("elect-leaders", () -> {
            var found = get(ADMIN.electLeaders(ElectionType.PREFERRED, Set.of(first)).partitions());
            equal(found.get(first).get() instanceof ElectionNotNeededException, true);
        });
        check("reassign", () -> {
            get(ADMIN.alterPartitionReassignments(Map.of(first, Optional.of(new NewPartitionReassignment(List.of(0))))).all());
            until(() -> get(ADMIN.listPartitionReassignments().reassignments()).isEmpty(), "still going on");
        });
        check("quotas", () -> {
            var entity = new ClientQuotaEntity(Map.of("client-id", topic("client")));
            var op = new ClientQuotaAlteration.Op("producer_byte_rate", 1e6);
            get(ADMIN.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, List.of(op)))).all());
            var filter = ClientQuotaFilter.contains(
                List.of(ClientQuotaFilterComponent.ofEntity("client-id", topic("client"))));
            until(() -> get(ADMIN.describeClientQuotas(filter).entities()).containsKey(entity), "not seen");
        });
        check("delete-topic", () -> {
            get(ADMIN.deleteTopics(Set.of(topic("created"))).all());
            until(() -> !get(ADMIN.listTopics().names()).contains(topic("created")), "still listed");
        });
    }
}
