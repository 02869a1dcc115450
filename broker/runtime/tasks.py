"""The only place that starts asyncio tasks and worker threads.

asyncio keeps only weak references to tasks, so a task without another reference can be collected
while it runs, and an exception in it stays unseen until the garbage collector runs. `spawn` keeps
every task, names it, and logs how it failed. `WorkerPool` runs blocking calls (fsync, compaction,
cold reads) in a bounded number of threads behind a bounded queue.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future as ThreadFuture
    from concurrent.futures import ThreadPoolExecutor

logger = logging.getLogger("ottla.tasks")

Result = TypeVar("Result")

# Disks that are read at a start, files that are synced at a stop, at the same time: more threads
# than that only take turns.
_THREADS_AT_ONCE_MAX = 8

_tasks: set[asyncio.Task[Any]] = set()


def spawn(coroutine: Coroutine[Any, Any, Result], *, name: str) -> asyncio.Task[Result]:
    """Start `coroutine` as a task that is kept until it ends.

    A failure is logged once with the task's name; cancellation is not a failure. The caller may
    await the task as well, and then sees the exception too.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(coroutine, name=name)
    _tasks.add(task)
    task.add_done_callback(_ended)
    return task


async def gather_limited(coroutines: Sequence[Coroutine[Any, Any, object]], at_once: int) -> None:
    """Run the coroutines, at most `at_once` of them beside each other; they do not raise."""
    if len(coroutines) == 1:
        await coroutines[0]  # needs no task
        return
    started = 0
    try:
        while started < len(coroutines):
            part = coroutines[started : started + at_once]
            started += len(part)
            await asyncio.gather(*part)
    finally:  # cancelled
        for coroutine in coroutines[started:]:
            coroutine.close()


def running_tasks() -> list[asyncio.Task[Any]]:
    """The tasks started by `spawn` that have not ended; for shutdown and for leak checks."""
    return list(_tasks)


async def stop(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they are gone. Their exceptions were logged by `spawn`."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _ended(task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        logger.error("task %s failed", task.get_name(), exc_info=error)


def run_in_threads(jobs: Sequence[Callable[[], None]]) -> None:
    """Run all functions beside each other and return when they have ended; never on the loop.

    The first error is raised, when all have ended.
    """
    if len(jobs) < 2:
        for job in jobs:
            job()
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(jobs), _THREADS_AT_ONCE_MAX), "ottla-disks") as executor:
        futures = [executor.submit(job) for job in jobs]
    for future in futures:
        future.result()


_abandoned: "list[ThreadPoolExecutor]" = []


def abandoned_threads() -> list[str]:
    """The names of threads that a closed pool has given up and that still run.

    The interpreter would wait for them at its end.
    """
    threads = [thread for executor in _abandoned for thread in executor._threads]
    return [thread.name for thread in threads if thread.is_alive()]


class WorkerPoolClosed(RuntimeError):
    """The process is about to end: no more functions are accepted."""


class WorkerPool:
    """Runs blocking functions outside of the loop: bounded threads, bounded queue.

    At most `threads` functions run and at most `queue_limit` more wait for a thread. A caller
    beyond that waits in `run` before its function is queued, first come, first served: this is the
    back pressure on callers. Threads start when they are first needed.
    """

    def __init__(self, *, threads: int = 4, queue_limit: int = 64, name: str = "worker") -> None:
        self._threads = threads
        self._free = threads + queue_limit
        self._limit = self._free
        self._name = name
        self._executor: ThreadPoolExecutor | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._lock = threading.Lock()
        self._posted = 0
        # When `run` was called for what runs or waits for a thread, the earliest first.
        self._began: dict[ThreadFuture[Any], float] = {}
        self._closing: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    @property
    def accepted(self) -> int:
        """The number of functions that run or wait in the queue."""
        return self._limit - self._free + self._posted

    def oldest_seconds(self) -> float:
        """For how long the oldest function has run or waited for a thread; 0 without one."""
        began = next(iter(self._began.values()), None)
        return 0.0 if began is None else asyncio.get_running_loop().time() - began

    def post(self, function: Callable[[], None]) -> None:
        """Run `function` in a worker thread, some time later. Can be called in any thread.

        No caller waits for it, so that the event loop has nothing to do: no task, no wake-up. It
        takes no place in the queue: the caller bounds how many there are. An error is logged.
        Raises WorkerPoolClosed, or RuntimeError while the pool is being closed.
        """
        with self._lock:
            executor = self._started()
            self._posted += 1
        try:
            executor.submit(self._run_posted, function)
        except BaseException:
            self._count_posted_end()
            raise

    def _run_posted(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception:
            logger.exception("a function in worker pool %s failed", self._name)
        finally:
            self._count_posted_end()

    def _count_posted_end(self) -> None:
        with self._lock:
            self._posted -= 1
            closing = self._closing
        if closing is not None:
            with suppress(RuntimeError):  # the loop is closed
                closing[0].call_soon_threadsafe(self._check_idle)

    def _check_idle(self) -> None:
        if self._closing is not None and not self.accepted:
            self._closing[1].set()

    def _started(self) -> "ThreadPoolExecutor":
        if self._closed:
            raise WorkerPoolClosed(f"worker pool {self._name} is closed")
        executor = self._executor
        if executor is None:
            from concurrent.futures import ThreadPoolExecutor  # slow to import, perhaps never used

            executor = self._executor = ThreadPoolExecutor(self._threads, f"ottla-{self._name}")
        return executor

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run `function(*arguments)` in a worker thread and return what it returns.

        Cancelling the caller does not stop a function that has started: threads cannot be
        stopped. Its place is released when it really ends.
        """
        loop = asyncio.get_running_loop()
        await self._acquire(loop)
        try:
            with self._lock:
                executor = self._started()
            future = executor.submit(function, *arguments)
        except BaseException:
            self._release()
            raise
        self._began[future] = loop.time()
        future.add_done_callback(partial(self._finished, loop))
        outcome = asyncio.wrap_future(future, loop=loop)
        del future
        try:
            return await outcome
        finally:
            # An exception knows this frame, and the futures know the exception: a circle that would
            # keep all that the function had in hand until the garbage collector comes around.
            del outcome

    async def close(self, timeout_seconds: float | None = None) -> bool:
        """Wait for what was accepted, then end the threads. `run` fails from now on.

        After the timeout returns False: what waits for a thread is dropped, and what runs goes on
        (`abandoned_threads`).
        """
        loop = asyncio.get_running_loop()
        idle = asyncio.Event()
        with self._lock:
            self._closed = True
            executor, self._executor = self._executor, None
            self._closing = loop, idle
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(WorkerPoolClosed(f"worker pool {self._name} is closed"))
        if executor is None:
            return True
        # No thread waits for these threads: it would wait as long as they hang.
        executor.shutdown(wait=False)
        self._check_idle()
        try:
            async with asyncio.timeout(timeout_seconds):
                await idle.wait()
        except TimeoutError:
            executor.shutdown(wait=False, cancel_futures=True)
            _abandoned.append(executor)
            return False
        await loop.run_in_executor(None, executor.shutdown)  # they have nothing left to do
        return True

    async def _acquire(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._closed:
            raise WorkerPoolClosed(f"worker pool {self._name} is closed")
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        try:
            await waiter  # the releasing side hands its place over: no counting here
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release()
            raise

    def _finished(self, loop: asyncio.AbstractEventLoop, future: "ThreadFuture[Any]") -> None:
        # Runs in the worker thread, or on the loop when a queued function was cancelled.
        try:
            loop.call_soon_threadsafe(self._ended, future)
        except RuntimeError:
            # The loop is closed: the process is ending and no caller waits for the place.
            self._free += 1

    def _ended(self, future: "ThreadFuture[Any]") -> None:
        self._began.pop(future, None)
        self._release()

    def _release(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1
        self._check_idle()
