/*
 * Kafka's own admin client, call after call. The contract is the one of tests/support/client_programs.py:
 *
 *   java -cp <Kafka's jars> RelayedAdmin.java BOOTSTRAP
 *
 *   admin   topic, group    what each call said, by its name; `topic` is only asked about, `group` names what is made
 *
 * A call that fails is answered by the name of its error: at the broker and through Tidegate it is the same one. The
 * name of what is made reads MADE, so that two answers can be compared.
 */

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.StringSerializer;

public class RelayedAdmin {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int BROKER = 1;
    private static final long SETTLED_WITHIN_MS = 10_000;

    private final Map<String, Object> config;
    private final Admin admin;
    private final String topic;
    private final String made;
    private final TopicPartition partition;
    private final Map<String, String> said = new TreeMap<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode request = JSON.readTree(line);
            Map<String, Object> answer;
            Map<String, Object> config = Map.of("bootstrap.servers", arguments[0]);
            try (Admin admin = Admin.create(config)) {
                answer = Map.of("answer", new RelayedAdmin(config, admin, request).run());
            } catch (Exception error) {
                error.printStackTrace();
                answer = Map.of("failure", error.toString());
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
    }

    private RelayedAdmin(Map<String, Object> config, Admin admin, JsonNode request) {
        this.config = config;
        this.admin = admin;
        topic = request.path("topic").asText();
        made = request.path("group").asText();
        partition = new TopicPartition(made, 0);
    }

    private Map<String, String> run() throws Exception {
        topics();
        records();
        groups();
        placement();
        cluster();
        principals();
        say("deleteTopics", () -> admin.deleteTopics(List.of(made)).all().get());
        return said;
    }

    private void topics() {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, made);
        say("createTopics validate only", () -> admin.createTopics(
                List.of(new NewTopic(made, 1, (short) 9)), new CreateTopicsOptions().validateOnly(true)).all().get());
        say("createTopics", () -> {
            var wanted = new NewTopic(made, 2, (short) 1).configs(Map.of("retention.ms", "-1"));
            var created = admin.createTopics(List.of(wanted));
            return created.numPartitions(made).get() + " " + created.replicationFactor(made).get();
        });
        say("createTopics again", () -> admin.createTopics(List.of(new NewTopic(made, 2, (short) 1))).all().get());
        say("createPartitions", () -> admin.createPartitions(Map.of(made, NewPartitions.increaseTo(3))).all().get());
        say("createPartitions fewer",
                () -> admin.createPartitions(Map.of(made, NewPartitions.increaseTo(1))).all().get());
        sayOnce("describeTopics", "2 1[1][1]", () -> {
            var options = new DescribeTopicsOptions().includeAuthorizedOperations(true);
            var described = admin.describeTopics(List.of(topic, made), options).allTopicNames().get();
            return new TreeMap<>(described).values().stream()
                    .map(each -> each.name() + partitions(each.partitions())
                            + new TreeSet<>(each.authorizedOperations()))
                    .toList();
        });
        say("describeTopics unknown", () -> admin.describeTopics(List.of("no-such-topic")).allTopicNames().get());
        say("listTopics", () -> admin.listTopics().names().get().containsAll(List.of(topic, made)));
        say("incrementalAlterConfigs", () -> {
            var change = new AlterConfigOp(new ConfigEntry("max.message.bytes", "12345"), AlterConfigOp.OpType.SET);
            return admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
        });
        say("incrementalAlterConfigs wrong", () -> {
            var change = new AlterConfigOp(new ConfigEntry("no.such.key", "1"), AlterConfigOp.OpType.SET);
            return admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
        });
        sayOnce("describeConfigs", "max.message.bytes=12345", () -> {
            var described = admin.describeConfigs(List.of(resource)).all().get().get(resource).entries();
            return described.stream()
                    .map(each -> each.name() + "=" + each.value() + " " + each.source())
                    .sorted()
                    .toList();
        });
        say("describeConfigs broker", () -> {
            var broker = new ConfigResource(ConfigResource.Type.BROKER, "" + BROKER);
            var described = admin.describeConfigs(List.of(broker)).all().get().get(broker);
            return described.get("auto.create.topics.enable").value();
        });
        say("listConfigResources", () -> admin.listConfigResources().all().get().contains(resource));
    }

    private static List<String> partitions(List<TopicPartitionInfo> partitions) {
        return partitions.stream().map(each -> {
            String leader = each.leader() == null ? "none" : each.leader().idString();
            return each.partition() + " " + leader + ids(each.replicas()) + ids(each.isr());
        }).toList();
    }

    private static List<Integer> ids(Collection<Node> nodes) {
        return nodes.stream().map(Node::id).toList();
    }

    private void records() {
        say("produce", () -> {
            try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
                for (int number = 0; number < 10; number++) {
                    producer.send(new ProducerRecord<>(made, 0, 1_000L + number, "key", "value " + number)).get();
                }
            }
            return "done";
        });
        say("deleteRecords", () -> admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4)))
                .lowWatermarks().get(partition).get().lowWatermark());
        say("deleteRecords beyond", () -> admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(99)))
                .all().get());
        var specs = Map.of(
                "earliest", OffsetSpec.earliest(), "latest", OffsetSpec.latest(),
                "max timestamp", OffsetSpec.maxTimestamp(), "earliest local", OffsetSpec.earliestLocal(),
                "latest tiered", OffsetSpec.latestTiered(), "timestamp", OffsetSpec.forTimestamp(1_005L),
                "late timestamp", OffsetSpec.forTimestamp(Long.MAX_VALUE));
        specs.forEach((name, spec) -> {
            say("listOffsets made " + name,
                    () -> admin.listOffsets(Map.of(partition, spec)).all().get().get(partition));
            TopicPartition tiered = new TopicPartition(topic, 0);
            say("listOffsets " + name, () -> admin.listOffsets(Map.of(tiered, spec)).all().get().get(tiered));
        });
        say("describeProducers", () -> admin.describeProducers(List.of(partition)).all().get().get(partition)
                .activeProducers().size());
    }

    private void groups() {
        var offsets = Map.of(partition, new OffsetAndMetadata(7, Optional.empty(), "note"));
        say("alterConsumerGroupOffsets", () -> admin.alterConsumerGroupOffsets(made, offsets).all().get());
        say("listConsumerGroupOffsets",
                () -> admin.listConsumerGroupOffsets(made).partitionsToOffsetAndMetadata().get());
        say("describeConsumerGroups", () -> {
            var described = admin.describeConsumerGroups(List.of(made)).all().get().get(made);
            return described.groupState() + " " + described.members() + " " + described.type() + " "
                    + described.coordinator().id();
        });
        say("describeConsumerGroups unknown", () -> admin.describeConsumerGroups(List.of("no-such-group")).all().get());
        say("describeShareGroups unknown", () -> admin.describeShareGroups(List.of("no-such-group")).all().get());
        say("describeClassicGroups unknown", () -> admin.describeClassicGroups(List.of("no-such-group")).all().get());
        say("listGroups", () -> admin.listGroups().all().get().stream().anyMatch(each -> each.groupId().equals(made)));
        say("deleteConsumerGroupOffsets",
                () -> admin.deleteConsumerGroupOffsets(made, Set.of(partition)).all().get());
        say("deleteConsumerGroups", () -> admin.deleteConsumerGroups(List.of(made)).all().get());
        say("deleteConsumerGroups unknown", () -> admin.deleteConsumerGroups(List.of("no-such-group")).all().get());
        say("listTransactions", () -> admin.listTransactions().all().get().stream()
                .anyMatch(each -> each.transactionalId().equals(made)));
        say("describeTransactions unknown", () -> admin.describeTransactions(List.of(made)).all().get());
        say("fenceProducers", () -> admin.fenceProducers(List.of(made)).all().get());
        say("describeTransactions", () -> admin.describeTransactions(List.of(made)).all().get().get(made).state());
    }

    private void placement() {
        say("electLeaders", () -> admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions().get()
                .get(partition).map(each -> each.getClass().getSimpleName()));
        say("alterPartitionReassignments", () -> admin.alterPartitionReassignments(
                Map.of(partition, Optional.of(new NewPartitionReassignment(List.of(BROKER))))).all().get());
        say("alterPartitionReassignments wrong", () -> admin.alterPartitionReassignments(
                Map.of(partition, Optional.of(new NewPartitionReassignment(List.of(77))))).all().get());
        say("listPartitionReassignments",
                () -> admin.listPartitionReassignments(Set.of(partition)).reassignments().get());
        sayOnce("describeLogDirs", "MADE-2 0", () -> {
            var described = admin.describeLogDirs(List.of(BROKER)).allDescriptions().get().get(BROKER);
            return described.values().stream()
                    .flatMap(each -> each.replicaInfos().entrySet().stream())
                    .filter(each -> each.getKey().topic().equals(made))
                    .map(each -> each.getKey() + " " + each.getValue().size())
                    .sorted()
                    .toList();
        });
        var replica = new TopicPartitionReplica(made, 0, BROKER);
        say("describeReplicaLogDirs", () -> admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica)
                .getCurrentReplicaLogDir() != null);
        say("alterReplicaLogDirs", () -> admin.alterReplicaLogDirs(Map.of(replica, "/no-such-folder")).all().get());
    }

    private void cluster() {
        say("describeCluster", () -> {
            var described = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
            return described.clusterId().get() + ids(described.nodes().get()) 
                    + new TreeSet<>(described.authorizedOperations().get());
        });
        say("describeMetadataQuorum", () -> {
            var quorum = admin.describeMetadataQuorum().quorumInfo().get();
            return quorum.leaderId() + " " + quorum.voters().size();
        });
        say("describeFeatures", () -> new TreeMap<>(
                admin.describeFeatures().featureMetadata().get().finalizedFeatures()));
        say("updateFeatures", () -> admin.updateFeatures(
                Map.of("no.such.feature", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE)),
                new UpdateFeaturesOptions().validateOnly(true)).all().get());
        say("unregisterBroker", () -> admin.unregisterBroker(99).all().get());
        say("createDelegationToken", () -> admin.createDelegationToken().delegationToken().get());
        say("describeDelegationToken", () -> admin.describeDelegationToken().delegationTokens().get());
    }

    private void principals() {
        var binding = new AclBinding(
                new ResourcePattern(ResourceType.TOPIC, made, PatternType.LITERAL),
                new AccessControlEntry("User:someone", "*", AclOperation.READ, AclPermissionType.ALLOW));
        say("createAcls", () -> admin.createAcls(List.of(binding)).all().get());
        say("describeAcls", () -> admin.describeAcls(AclBindingFilter.ANY).values().get());
        say("deleteAcls", () -> admin.deleteAcls(List.of(binding.toFilter())).all().get());
        var entity = new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, made));
        var quota = new ClientQuotaAlteration.Op("consumer_byte_rate", 1e9);
        say("alterClientQuotas", () -> admin.alterClientQuotas(
                List.of(new ClientQuotaAlteration(entity, List.of(quota)))).all().get());
        var filter = ClientQuotaFilter.containsOnly(
                List.of(ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.CLIENT_ID, made)));
        // The broker's own cache follows the controller; until it has, the answer is empty.
        say("describeClientQuotas", () -> admin.describeClientQuotas(filter).entities().get().size() <= 1);
        var info = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096);
        say("alterUserScramCredentials", () -> admin.alterUserScramCredentials(
                List.of(new UserScramCredentialUpsertion(made, info, "secret"))).all().get());
        say("alterUserScramCredentials delete", () -> admin.alterUserScramCredentials(
                List.of(new UserScramCredentialDeletion(made, ScramMechanism.SCRAM_SHA_256))).all().get());
        say("describeUserScramCredentials unknown", () -> admin.describeUserScramCredentials(List.of("nobody"))
                .description("nobody").get());
    }

    /** Note what a call says once it says a certain thing: the broker follows its controller a moment later. */
    private void sayOnce(String name, String expected, Callable<Object> call) {
        long deadlineMs = System.currentTimeMillis() + SETTLED_WITHIN_MS;
        do {
            say(name, call);
        } while (!said.get(name).contains(expected) && System.currentTimeMillis() < deadlineMs);
    }

    /** Note what a call says, or the name of its error. */
    private void say(String name, Callable<Object> call) {
        String answer;
        try {
            answer = String.valueOf(call.call());
        } catch (ExecutionException error) {
            answer = error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            answer = "here: " + error;
        }
        said.put(name, answer.replace(made, "MADE"));
    }
}
