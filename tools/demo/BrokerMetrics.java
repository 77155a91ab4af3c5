import com.sun.tools.attach.VirtualMachine;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import javax.management.InstanceNotFoundException;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnector;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/**
 * Reads a running broker's own metrics, so that its counters can bear witness: java BrokerMetrics.java PID.
 *
 * Each line of standard input is "OBJECT_NAME ATTRIBUTE"; each is answered by one line of standard output: the
 * attribute's value, or "absent" when the broker has not made that MBean. Ends with its standard input.
 *
 * It attaches by process id, so that no broker needs a management port of its own.
 */
public final class BrokerMetrics {
    public static void main(String[] arguments) throws Exception {
        VirtualMachine machine = VirtualMachine.attach(arguments[0]);
        String address = machine.startLocalManagementAgent();
        machine.detach();
        try (JMXConnector connector = JMXConnectorFactory.connect(new JMXServiceURL(address))) {
            answer(connector.getMBeanServerConnection());
        }
    }

    private static void answer(MBeanServerConnection connection) throws Exception {
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = questions.readLine()) != null) {
            int space = line.lastIndexOf(' ');
            ObjectName name = new ObjectName(line.substring(0, space));
            try {
                System.out.println(connection.getAttribute(name, line.substring(space + 1)));
            } catch (InstanceNotFoundException absent) {
                System.out.println("absent");
            }
            System.out.flush();
        }
    }
}
