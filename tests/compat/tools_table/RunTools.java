import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of Kafka's tools one after another in one process.
 *
 * A line of the input is a class, the text of its standard input and its arguments, each in base64
 * and separated by blanks. A line of the output is the exit code and what the tool has printed, in
 * base64. A tool that does not end in the time of the first argument has the exit code -1.
 */
public final class RunTools {
    private static volatile Integer exitCode;

    private static final class Stopped extends RuntimeException {
        final int code;

        Stopped(int code) {
            super(null, null, false, false);
            this.code = code;
        }
    }

    public static void main(String[] arguments) throws Exception {
        long seconds = Long.parseLong(arguments[0]);
        PrintStream answers = System.out;
        Exit.setExitProcedure((code, message) -> stop(code));
        Exit.setHaltProcedure((code, message) -> stop(code));
        Exit.setShutdownHookAdder((name, hook) -> { });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = Arrays.stream(line.split(" ")).map(RunTools::decoded).toArray(String[]::new);
            ByteArrayOutputStream printed = new ByteArrayOutputStream() {
                @Override
                public synchronized void write(byte[] bytes, int from, int count) {
                    if (exitCode == null) {
                        super.write(bytes, from, count);
                    }
                }
            };
            exitCode = null;
            PrintStream out = new PrintStream(printed, true);
            System.setIn(new java.io.ByteArrayInputStream(words[1].getBytes(StandardCharsets.UTF_8)));
            System.setOut(out);
            System.setErr(out);
            int code = run(words[0], Arrays.copyOfRange(words, 2, words.length), out, seconds);
            out.flush();
            if (exitCode != null) {
                code = exitCode;
            }
            answers.println(code + " " + Base64.getEncoder().encodeToString(printed.toByteArray()));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    /** Tools catch the exception, print it and exit again: the first code is the true one. */
    private static void stop(int code) {
        System.out.flush();
        if (exitCode == null) {
            exitCode = code;
        }
        throw new Stopped(code);
    }

    private static String decoded(String word) {
        return new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
    }

    private static int run(String name, String[] arguments, PrintStream out, long seconds)
        throws InterruptedException {
        FutureTask<Integer> task = new FutureTask<>(() -> call(name, arguments, out));
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        thread.start();
        try {
            return task.get(seconds, TimeUnit.SECONDS);
        } catch (TimeoutException e) {
            thread.interrupt();
            return -1;
        } catch (ExecutionException e) {
            out.println(e.getCause());
            return 1;
        }
    }

    private static int call(String name, String[] arguments, PrintStream out) throws Exception {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (java.lang.reflect.InvocationTargetException e) {
            if (e.getCause() instanceof Stopped) {
                return ((Stopped) e.getCause()).code;
            }
            out.println(e.getCause());
            return 1;
        }
    }
}
