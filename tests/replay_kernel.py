"""A Jupyter kernel that runs nothing: it answers each cell with the outputs in ./answers.json.

With it nbval compares a chapter with changed copies of itself in a second, without running a
kernel of the chapter again: what the real outputs are is nbval's own stage.
"""

import json
from pathlib import Path

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel


def message(output: dict, count: int) -> dict:
    """The content of the message that makes a front end store this output."""
    if output["output_type"] == "stream":
        return {"name": output["name"], "text": "".join(output["text"])}
    data = {
        kind: "".join(value) if isinstance(value, list) else value
        for kind, value in output["data"].items()
    }
    return {"data": data, "metadata": output["metadata"], "execution_count": count}


class ReplayKernel(Kernel):
    implementation = banner = "replay"
    implementation_version = language_version = "1"
    language_info = {"name": "python", "mimetype": "text/x-python", "file_extension": ".py"}  # noqa: RUF012

    def __init__(self, **options):
        super().__init__(**options)
        self.answers = json.loads(Path("answers.json").read_text())

    def do_execute(self, code, silent, *_, **__):
        source, outputs = self.answers.pop(0) if self.answers else ("", [])
        reply = {"execution_count": self.execution_count, "payload": [], "user_expressions": {}}
        if source != code:
            return reply | {"status": "error", "ename": "Replay", "evalue": code, "traceback": []}
        for output in outputs:
            content = message(output, self.execution_count)
            self.send_response(self.iopub_socket, output["output_type"], content)
        return reply | {"status": "ok"}


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=ReplayKernel)
