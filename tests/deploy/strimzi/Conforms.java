// Holds resources against Strimzi's model: a JSON array of them on standard input, and what is wrong, a line each, on
// standard output. Wrong are keys that the model does not have, values that it does not take, versions that it does not
// serve, and required keys that are absent: what Strimzi's CRDs, which are generated from this model, have refused. Not
// seen is what only `v1` requires, for the jar with the annotation that says so is not published.

import com.fasterxml.jackson.annotation.JsonCreator;
import com.fasterxml.jackson.databind.JsonMappingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.cfg.MapperConfig;
import com.fasterxml.jackson.databind.introspect.Annotated;
import com.fasterxml.jackson.databind.introspect.BeanPropertyDefinition;
import com.fasterxml.jackson.databind.introspect.JacksonAnnotationIntrospector;
import io.strimzi.api.kafka.model.kafka.Kafka;
import io.strimzi.api.kafka.model.nodepool.KafkaNodePool;
import io.strimzi.api.kafka.model.user.KafkaUser;
import java.util.Collection;
import java.util.List;
import java.util.Map;

public final class Conforms {
    private static final Map<String, Class<?>> MODELS =
            Map.of("Kafka", Kafka.class, "KafkaNodePool", KafkaNodePool.class, "KafkaUser", KafkaUser.class);
    private static final Map<String, List<String>> VERSIONS =
            Map.of("Kafka", Kafka.VERSIONS, "KafkaNodePool", KafkaNodePool.VERSIONS, "KafkaUser", KafkaUser.VERSIONS);

    /** The model keeps unknown keys, so that a newer operator's survive; here they are errors. */
    private static final class Strict extends JacksonAnnotationIntrospector {
        @Override
        public Boolean hasAnySetter(Annotated annotated) {
            return false;
        }

        /** An enumeration is made from its value's text; Jackson would look for the creator's argument by name. */
        @Override
        public JsonCreator.Mode findCreatorAnnotation(MapperConfig<?> config, Annotated annotated) {
            JsonCreator.Mode mode = super.findCreatorAnnotation(config, annotated);
            return mode != null && annotated.getRawType().isEnum() ? JsonCreator.Mode.DELEGATING : mode;
        }
    }

    private static final ObjectMapper MAPPER = new ObjectMapper().setAnnotationIntrospector(new Strict());

    public static void main(String[] arguments) throws Exception {
        for (JsonNode document : MAPPER.readTree(System.in)) {
            String kind = document.path("kind").asText();
            String version = document.path("apiVersion").asText();
            try {
                if (VERSIONS.get(kind).stream().noneMatch(each -> version.equals("kafka.strimzi.io/" + each))) {
                    System.out.println(kind + ": no version " + version);
                }
                Object resource = MAPPER.treeToValue(document, MODELS.get(kind));
                JsonNode understood = MAPPER.valueToTree(resource);
                for (String part : List.of("metadata", "spec")) {
                    compare(kind + "." + part, document.path(part), understood.path(part));
                }
                require(kind, resource);
            } catch (JsonMappingException error) {
                System.out.println(kind + ": " + error.getMessage().lines().findFirst().orElse("?"));
            }
        }
    }

    /** A value that an enumeration does not know is read as none at all. */
    private static void compare(String path, JsonNode said, JsonNode understood) {
        if (said.isContainerNode()) {
            said.fieldNames().forEachRemaining(
                    name -> compare(path + "." + name, said.get(name), understood.path(name)));
            for (int at = 0; said.isArray() && at < said.size(); at++) {
                compare(path + "[" + at + "]", said.get(at), understood.path(at));
            }
        } else if (!said.asText().equals(understood.asText())) {
            System.out.println(path + ": " + said + " is not taken");
        }
    }

    private static void require(String path, Object value) {
        if (value instanceof Collection<?> all) {
            all.forEach(each -> require(path, each));
        } else if (value != null && value.getClass().getName().startsWith("io.strimzi.") && !(value instanceof Enum)) {
            var type = MAPPER.constructType(value.getClass());
            for (BeanPropertyDefinition each : MAPPER.getSerializationConfig().introspect(type).findProperties()) {
                if (each.getAccessor() == null) {
                    continue;
                }
                each.getAccessor().fixAccess(true);
                Object found = each.getAccessor().getValue(value);
                if (found == null && each.isRequired()) {
                    System.out.println(path + "." + each.getName() + ": is required");
                }
                require(path + "." + each.getName(), found);
            }
        }
    }
}
