package ottla.runner

import org.junit.jupiter.api.extension.{ConditionEvaluationResult, ExecutionCondition, ExtensionContext}
import org.junit.platform.engine.TestExecutionResult
import org.junit.platform.engine.discovery.DiscoverySelectors.{selectClass, selectMethod}
import org.junit.platform.engine.support.descriptor.{ClassSource, MethodSource}
import org.junit.platform.launcher.core.{LauncherDiscoveryRequestBuilder, LauncherFactory}
import org.junit.platform.launcher.{TestExecutionListener, TestIdentifier, TestPlan}

import java.io.{PrintWriter, StringWriter}
import com.fasterxml.jackson.databind.ObjectMapper
import com.fasterxml.jackson.databind.node.ObjectNode

/** Disables the invocations of a parameterized test that are not for ZooKeeper mode. */
class ZooKeeperOnly extends ExecutionCondition {
  override def evaluateExecutionCondition(context: ExtensionContext): ConditionEvaluationResult =
    if (Seq("quorum=kraft", "Type=Raft").exists(context.getDisplayName.contains(_)))
      ConditionEvaluationResult.disabled("KRaft")
    else ConditionEvaluationResult.enabled("")
}

/** Runs test classes (CLASS) or methods (CLASS#METHOD) and prints a line of JSON for each test, and
  * one without a test when a class has ended.
  */
object Runner {
  private val json = new ObjectMapper
  private val out = System.out

  def main(arguments: Array[String]): Unit = {
    System.setOut(System.err)
    val selectors = arguments.map { name =>
      if (name.contains("#")) selectMethod(name) else selectClass(name)
    }
    val request = LauncherDiscoveryRequestBuilder.request().selectors(selectors: _*)
      .configurationParameter("junit.jupiter.extensions.autodetection.enabled", "true")
      .configurationParameter("junit.jupiter.execution.timeout.testable.method.default",
        System.getProperty("ottla.timeout", "120 s"))
      .build()
    LauncherFactory.create().execute(request, Printer)
    out.flush()
    Runtime.getRuntime.halt(0)
  }

  private object Printer extends TestExecutionListener {
    private val starts = new java.util.concurrent.ConcurrentHashMap[String, Long]
    private var plan: TestPlan = _

    override def testPlanExecutionStarted(testPlan: TestPlan): Unit = plan = testPlan

    override def executionStarted(test: TestIdentifier): Unit = {
      starts.put(test.getUniqueId, System.nanoTime())
      if (test.isTest) System.err.println(s"=== ${className(test)} ${title(test)}")
    }

    override def executionSkipped(test: TestIdentifier, reason: String): Unit =
      if (reason != "KRaft") show(test, "SKIPPED", reason)

    override def executionFinished(test: TestIdentifier, result: TestExecutionResult): Unit = {
      val error = result.getThrowable.map[String](describe).orElse("")
      // A container ends without success when its set-up failed: its tests did not run.
      if (test.isTest || result.getStatus == TestExecutionResult.Status.FAILED)
        show(test, if (result.getStatus == TestExecutionResult.Status.SUCCESSFUL) "PASSED" else "FAILED", error)
      if (test.getSource.filter(_.isInstanceOf[ClassSource]).isPresent) print(json.createObjectNode()
        .put("class", className(test)))
    }

    private def show(test: TestIdentifier, status: String, error: String): Unit = {
      val seconds = (System.nanoTime() - starts.getOrDefault(test.getUniqueId, System.nanoTime())) / 1e9
      val row = json.createObjectNode().put("class", className(test)).put("test", title(test))
        .put("status", status).put("seconds", math.round(seconds * 10) / 10.0).put("error", error)
      print(row)
    }

    private def print(row: ObjectNode): Unit = {
      out.println(json.writeValueAsString(row))
      out.flush()
    }

    private def className(test: TestIdentifier): String =
      Iterator.iterate(Option(test))(_.flatMap(each => Option(plan.getParent(each).orElse(null))))
        .takeWhile(_.isDefined).map(_.get)
        .map(_.getUniqueId).find(_.contains("[class:"))
        .map(_.split("\\[class:")(1).split("]")(0)).getOrElse("")

    private def title(test: TestIdentifier): String = {
      val method = test.getSource.filter(_.isInstanceOf[MethodSource])
        .map[String](_.asInstanceOf[MethodSource].getMethodName).orElse("")
      val name = test.getDisplayName
      if (name.startsWith(method)) name else s"$method $name"
    }

    private def describe(error: Throwable): String = {
      val text = new StringWriter
      error.printStackTrace(new PrintWriter(text))
      text.toString.take(6000)
    }
  }
}
