"""A Kafka broker in memory: the mock cluster of librdkafka, which speaks Kafka's protocol over a real port.

Makes the topic that is its argument, prints its port, and runs until it is ended. Whatever it was given goes with it.
"""

import signal
import sys

from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 3})
(broker,) = producer.list_topics(sys.argv[1], timeout=10).brokers.values()
while not producer.list_topics(timeout=10).topics:
    pass
print(broker.port, flush=True)
signal.pause()
