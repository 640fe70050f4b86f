"""How every figure looks: one colour, marker, line and hatch for each arm and each phase, told apart in grey too."""

import io
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "savefig.dpi": 150,
    "svg.hashsalt": "colocate-grpo",  # the same figure is the same file
}


@dataclass(frozen=True)
class Look:
    """`hatch` is for areas; `marker` and `line` are for curves."""

    label: str
    color: str
    marker: str = "o"
    line: str | tuple = "-"
    hatch: str = ""


# The colours' luminance rises from arm to arm, so that they stay apart in grey; marker, line and hatch say it once more.
ARMS = {
    "colocate": Look("colocate", "#0b3c6f", "o", "-", ""),
    "colocate_sleep": Look("colocate + sleep", "#3f6f9f", "P", (0, (6, 1)), "||||"),
    "server": Look("server", "#c44e1c", "s", "--", "////"),
    "continuous_batching": Look("continuous batching", "#3aa6a0", "^", "-.", "...."),
    "generate": Look("generate()", "#d9a521", "D", ":", "xxxx"),
    "base": Look("base model", "#bdbdbd", "v", "-", "\\\\\\\\"),
}

HELD_OUT = "#b01e5a"

# In the order of a step. Waiting is what a figure of phases is about: it stays white.
PHASES = {
    "wake": Look("engine wakes", "#8a5a9e", hatch="xxxx"),
    "sync": Look("weight sync", "#151515"),
    "generate": Look("generate", "#2f6690"),
    "sleep": Look("engine sleeps", "#8a5a9e", hatch="...."),
    "score": Look("log-probabilities", "#7fb79a", hatch="////"),
    "forward_backward": Look("forward, backward", "#d8a861"),
    "optimizer": Look("optimizer", "#b5651d", hatch="\\\\\\\\"),
    "save": Look("checkpoint", "#a61e4d", hatch="++++"),
    "wait": Look("waits", "#ffffff", hatch="....."),
    "other": Look("other", "#f0f0f0"),
}


def styled(draw):
    """A drawing function in this style, whatever the caller's own settings are."""

    @wraps(draw)
    def inner(*arguments, **options):
        with style.context(["default", STYLE]):
            return draw(*arguments, **options)

    return inner


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """A figure of its own, outside pyplot: nothing is kept open, and no window is asked for."""
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


@styled
def save(figure: Figure, path: Path) -> Path:
    """Writes the figure in the format that the suffix names (png, svg, pdf). Returns `path`."""
    path = Path(path)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata, facecolor="white")
    return path


@styled
def svg(figure: Figure) -> bytes:
    """The figure as SVG; text is drawn as outlines, so that no font is needed to read it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, facecolor="white")
    return buffer.getvalue()
