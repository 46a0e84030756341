"""All contact with the insides of Triton's interpreter."""

from contextlib import contextmanager

from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from kernelbook._launches import Launch, Source, record_launch

__all__ = ["Launch", "Source", "capture_launches", "install"]


def install():
    """Patch Triton, once."""


@contextmanager
def capture_launches():
    """Record launches instead of running them: `with capture_launches() as launches:`."""
    launches: list[Launch] = []
    before = InterpretedFunction.run, JITFunction.run, Autotuner.run

    def run(self, *args, grid, warmup=False, **kwargs):
        autotuned = kwargs.pop("_autotuned", False)
        launches.append(record_launch(self, grid, args, kwargs, autotuned))

    def tune(self, *args, **kwargs):
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        configs = self.prune_configs(kwargs)
        for config in configs:
            tuned = {**kwargs, **config.all_kwargs()}
            if config.pre_hook is not None:  # sets the block shapes of host descriptors
                config.pre_hook({**self.nargs, **tuned})
            self.fn.run(*args, **tuned, _autotuned=len(configs) > 1)

    InterpretedFunction.run, JITFunction.run, Autotuner.run = run, run, tune
    try:
        yield launches
    finally:
        InterpretedFunction.run, JITFunction.run, Autotuner.run = before
