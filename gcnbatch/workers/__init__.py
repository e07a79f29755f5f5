"""Worker processes that call functions.

`gcnbatch.workers.pool` has the pool, a `concurrent.futures.Executor`; `gcnbatch.workers.process` is what its processes
run; `gcnbatch.workers.shared` has arguments that are sent once to each process.

`concurrent.futures.ProcessPoolExecutor` is unsuitable: its processes outlive a caller that is killed, and they import
the caller's main script, which fails unless the script guards its work with ``if __name__ == "__main__"``.

A worker is a new Python process (no fork of threads or of a GPU context) with the caller's `sys.path`. It receives
pickled calls through stdin, and sends results or exceptions through stdout. It ends when stdin closes. A pipe that only
the caller holds open tells a worker at work that the caller has died; it then ends at once.

Of a pool with an initializer, only the first worker starts Python. When it has called the initializer, and before it
has threads, it forks the others, so that modules are imported once and lie in memory once.

These modules import little, so that workers start early.
"""
