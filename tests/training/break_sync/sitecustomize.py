"""Put on PYTHONPATH, Python runs this in every rank, and in benchmarks/check_sleep.py: it breaks the weight sync in the way
that BREAK_SYNC names.

skip    every sync after the first does nothing
stale   before each generation the engine reads the first checkpoint again, as TRL 0.28 to 1.9 did with sleep mode
layer   the parameters of one layer are left out of every sync
"""

import os
import sys

FAULT = os.environ.get("BREAK_SYNC")


class _Break:
    def find_spec(self, name, path=None, target=None):
        if name == "training.trainer":  # imported after training.engine, before the trainer is made
            sys.meta_path.remove(self)
            {"skip": skip, "stale": stale, "layer": leave_out_a_layer}[FAULT]()


def skip():
    import training.engine
    import training.server_client

    def once(original):
        done = []

        def sync(*args):
            if not done:
                original(*args)
            done.append(True)

        return sync

    training.engine._reload_on_cpu = once(training.engine._reload_on_cpu)
    client = training.server_client.GlooClient
    client.update_named_params = once(client.update_named_params)


def stale():
    import trl.generation.vllm_generation as trl_generation

    import training.engine
    import training.server_client

    def reading_again(original, read):
        def generate(self, *args, **kwargs):
            read(self)
            return original(self, *args, **kwargs)

        return generate

    llm, client = trl_generation.LLM, training.server_client.GlooClient
    llm.generate = reading_again(llm.generate, lambda self: training.engine.model_runner(self).reload_weights())
    client.generate = reading_again(
        client.generate,
        lambda self: self.session.post(f"{self.base_url}/collective_rpc", json={"method": "reload_weights"}),
    )


def leave_out_a_layer():
    from trl.generation.vllm_generation import VLLMGeneration

    original = VLLMGeneration._iter_named_params

    def all_but_one(self):
        for name, weight in original(self):
            if "layers.1." not in name:
                yield name, weight

    VLLMGeneration._iter_named_params = all_but_one


if FAULT and {"training", "benchmarks/check_sleep.py"} & set(sys.orig_argv):
    sys.meta_path.insert(0, _Break())
