"""The list: each step with its package, version, file, the devices it is compiled for, and what was needed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pathways_nb as pw
from pathways_nb.adopt.adopted_step import AdoptedStep
from tests.support.package_steps import flax_examples, installed_documents, library_examples
from tests.support.package_steps.calls import Call

UNCHANGED = "unchanged"
FLAX, HAIKU = "flax 0.12.8", "dm-haiku 0.0.17"
PINS = (
    "clu==0.0.12", "ml-collections==1.1.0", "wrapt==2.5.2", "jraph==0.0.6.dev0", "dm-haiku==0.0.17", "jmp==0.0.4",
    "tabulate==0.10.0", "google-tunix==0.1.7", "google-metrax==0.2.4", "tensorboardX==2.6.5", "qwix==0.1.8",
    "safetensors==0.8.0", "numpyro==0.22.0", "multipledispatch==1.0.0", "tqdm==4.70.1",
)  # fmt: skip
"""What the recording installs beside the tests' packages, without what these ask for."""
SOURCE = "flax==0.12.8"
"""The source distribution with Flax's examples."""


@dataclass(frozen=True)
class PackageStep:
    """A step of a package.

    Args:
        name: of its record.
        package: and version; of an installed one the version is that of the tests.
        file: in the package.
        call: makes the step with its arguments.
        mesh: that it is compiled for.
        how: ``"unchanged"``, or the line that was needed.
        chip: that it is compiled for.
        installed: whether the tests' packages have it, so that it is taken over live.
    """

    name: str
    package: str
    file: str
    call: Callable[[], Call]
    mesh: Mapping[str, int]
    how: str = UNCHANGED
    chip: str = "gpu_h100_sxm"
    installed: bool = False

    @property
    def devices(self) -> int:
        """Number of devices."""
        return math.prod(self.mesh.values())

    @contextlib.contextmanager
    def adopted(self, **elsewhere: Any) -> Iterator[AdoptedStep]:
        """The step on its devices, or elsewhere, in the contexts that it is called in where it is published."""
        call = self.call()
        with contextlib.ExitStack() as stack:
            for context in call.around:
                stack.enter_context(context())
            asked = {"chip": self.chip, "mesh": self.mesh, **elsewhere}
            step = pw.adopt(call.step, *call.args, **asked, **call.kwargs)
            assert isinstance(step, AdoptedStep)
            yield step


_DATA = {"data": 64}
_JITTED = "`jax.jit(train_step)`"
STEPS = (
    PackageStep("flax_mnist", FLAX, "examples/mnist/train.py", flax_examples.mnist, _DATA),
    PackageStep("flax_seq2seq", FLAX, "examples/seq2seq/train.py", flax_examples.seq2seq, _DATA),
    PackageStep("flax_sst2", FLAX, "examples/sst2/train.py", flax_examples.sst2, _DATA,
                _JITTED + ", which stands in its `train_and_evaluate`"),
    PackageStep("flax_ppo", FLAX, "examples/ppo/ppo_lib.py", flax_examples.ppo, _DATA),
    PackageStep("flax_molpcba", FLAX, "examples/ogbg_molpcba/train.py", flax_examples.molpcba, _DATA),
    PackageStep("flax_resnet50", FLAX, "examples/imagenet/train.py", flax_examples.imagenet, {"batch": 64},
                "`jax.jit(jax.shard_map(…))` in place of its `jax.pmap`"),
    PackageStep("flax_lm1b", FLAX, "examples/lm1b/train.py", flax_examples.lm1b, {"data": 8, "fsdp": 2, "tensor": 4},
                "`jax.jit(train_step, in_shardings=…)`, which stands in its `train_and_evaluate`"),
    PackageStep("flax_diffusion", FLAX, "docs_nnx/examples/digits_diffusion_model.ipynb", flax_examples.diffusion,
                _DATA),
    PackageStep("flax_minigpt", FLAX, "docs_nnx/examples/minigpt.ipynb", flax_examples.minigpt,
                {"batch": 16, "model": 1}),
    PackageStep("flax_gspmd", FLAX, "docs_nnx/guides/flax_gspmd.ipynb", flax_examples.gspmd_guide,
                {"data": 4, "model": 4}, chip="tpu_v5p:2x2x4"),
    PackageStep("flax_vit", FLAX, "docs_nnx/examples/vit_training.ipynb", flax_examples.vision_transformer,
                _DATA),
    PackageStep("haiku_rnn", HAIKU, "examples/rnn/train.py", library_examples.haiku_rnn, _DATA),
    PackageStep("haiku_transformer", HAIKU, "examples/transformer/train.py", library_examples.haiku_transformer,
                {"data": 16}, chip="tpu_v5p:2x2x4"),
    PackageStep("tunix_lora", "google-tunix 0.1.7", "tunix/sft/peft_trainer.py", library_examples.tunix_lora,
                {"fsdp": 64}, "`nnx.jit(trainer.create_train_step_fn())`, as its trainer does on the first call"),
    PackageStep("numpyro_svi", "numpyro 0.22.0", "numpyro/infer/svi.py", library_examples.numpyro_svi, _DATA,
                "`jax.jit(svi.update)`, as its documents do"),
    PackageStep("jax_readme", "jax", "README.md", installed_documents.jax_readme, _DATA, installed=True),
    PackageStep("jax_explicit", "jax", "README.md", installed_documents.jax_readme_explicit, _DATA,
                "unchanged, axes explicit", installed=True),
    PackageStep("equinox_readme", "equinox", "README.md", installed_documents.equinox_readme, _DATA, installed=True),
    PackageStep("flax_average", "flax", "flax/nnx/training/ema.py", installed_documents.flax_average, _DATA,
                installed=True),
    PackageStep("pallas_attention", "jax", "jax/experimental/pallas/ops/gpu/attention.py",
                installed_documents.pallas_attention, _DATA, "`jax.grad` of it in a `shard_map`", installed=True),
)  # fmt: skip
BY_NAME = {step.name: step for step in STEPS}
