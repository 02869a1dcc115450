# A client with ruby-kafka: `ruby ruby_client.rb BOOTSTRAP STEP [ARGUMENT ...]`. What a step found is
# a line of JSON on the standard output.

require "json"
require "kafka"

bootstrap, step, *arguments = ARGV
client = Kafka.new([bootstrap], client_id: "ruby", logger: nil)

def put(value)
  puts JSON.generate(value)
  $stdout.flush
end

# Numbers as records of a topic, each in the partition of its key.
def produce(producer, topic, first, last)
  (first...last).each do |number|
    producer.produce(number.to_s, key: "key-#{number}", topic: topic, headers: { "n" => number.to_s })
  end
end

# It keeps what was not delivered when no broker can be reached: the application tries again.
def deliver(producer)
  tries = 0
  begin
    producer.deliver_messages
  rescue Kafka::DeliveryFailed
    raise if (tries += 1) > 60
    sleep(1)
    retry
  end
end

case step
when "admin"
  client.create_topic("admin", num_partitions: 2, config: { "retention.ms" => "1000000" })
  client.create_partitions_for("admin", num_partitions: 3)
  client.alter_topic("admin", "max.message.bytes" => "2000000")
  found = client.describe_topic("admin", ["max.message.bytes"])
  put(partitions: client.partitions_for("admin"), settings: found, brokers: client.brokers.size)
  client.delete_topic("admin")
when "produce" # topic, first, last, codec ("none"), how many before it waits for a line of the input
  topic, first, last, codec, pause = arguments
  producer = client.producer(
    required_acks: :all, idempotent: true, compression_codec: codec == "none" ? nil : codec.to_sym, max_retries: 60,
    retry_backoff: 1, compression_threshold: 2
  )
  (first.to_i...last.to_i).step(20) do |number|
    produce(producer, topic, number, number + 20)
    deliver(producer)
    next unless number + 20 == pause.to_i
    put("waiting")
    $stdin.gets
  end
  put("delivered")
when "transactions"
  # An id for each: the client gives up on CONCURRENT_TRANSACTIONS, while the last one of an id ends.
  [[0, false], [20, true], [40, false]].each do |first, aborts|
    producer = client.producer(transactional: true, transactional_id: "ruby-#{first}")
    producer.init_transactions
    producer.transaction do
      produce(producer, "transactions", first, first + 20)
      producer.deliver_messages
      raise Kafka::Producer::AbortTransaction if aborts
    end
  rescue Kafka::Producer::AbortTransaction
    next
  end
  put("committed")
when "consume" # topic, group, how many
  topic, group, count = arguments
  consumer = client.consumer(group_id: group, offset_commit_interval: 1, session_timeout: 10)
  consumer.subscribe(topic, start_from_beginning: true)
  seen = 0
  consumer.each_message(max_wait_time: 1) do |message|
    put([message.partition, message.offset, message.key, message.value, message.headers["n"]])
    seen += 1
    consumer.stop if seen == count.to_i
  end
when "group"
  described = client.describe_group(arguments[0])
  offsets = client.fetch_group_offsets(arguments[0])
  put(state: described.state, groups: client.groups,
      offsets: offsets.transform_values { |rows| rows.transform_values(&:offset) })
end
client.close
