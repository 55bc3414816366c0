"""The base of the explorers: choices as traits, one result of the present choices, its picture in a cell and in a file.

An explorer needs no notebook, so that it is tested as plain Python. ``pathways_widgets.explorers.controls_panel`` makes
its controls from its traits. An explorer defines its traits, what it computes from them, and how that is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import traitlets as t

from pathways_nb.errors import PathwaysError, UsageError, did_you_mean
from pathways_nb.util.collecting import uncollected
from pathways_nb.util.displaying import ShowsItself
from pathways_nb.util.json_text import shortened

if TYPE_CHECKING:
    from pathways_widgets.drawing.scene import Scene
    from pathways_widgets.explorers.plots import PlotsDrawing
    from pathways_widgets.figures.picture_figure import PictureFigure

R = TypeVar("R")
TAGS = frozenset({"group", "label", "help", "unit", "most", "width", "options", "suggestions", "lines", "shows",
                  "empty", "steps", "recompute"})  # fmt: skip
"""The tags of traits, which ``Explorer`` explains; traitlets adds ``help``."""


class ExplorerButton(NamedTuple):
    """A button below the figure of an explorer.

    Args:
        label: text of the button.
        method: name of the explorer's method that it calls.
        file: name of the file that the method writes, its argument; empty for a method without arguments.
        help: tooltip; empty for the name of the file.
        busy: message while the method works.
    """

    label: str
    method: str
    file: str = ""
    help: str = ""
    busy: str = ""


class Explorer(ShowsItself, t.HasTraits, Generic[R]):
    """Choices that can be set by controls or from Python, and what is computed from them.

    Each trait with the tag ``group`` gets a control, which shows the trait's ``help`` as its tooltip. Tags:

    - ``group``: its row of controls. Rows and controls are in the order in which the class defines the traits.
    - ``label``: the words left of the control; by default the name of the trait.
    - ``unit``: what the control shows, such as ``("GB/s", 9)``: the word, and how many powers of ten it is of the
      trait's SI unit.
    - ``most``: a number is set by a slider that ends here, in the control's unit.
    - ``width``: in heights of text.
    - ``options``: the attribute that lists what a menu offers; a ``t.Enum`` needs none.
    - ``suggestions``: the attribute that lists what a text field offers; the field is hidden while there is nothing.
    - ``lines``: the number of lines of a text field.
    - ``shows``: the attribute whose text a field shows in place of the trait.
    - ``empty``: what an empty field says where the trait may be None.
    - ``steps``: the trait counts steps, up to this attribute, and is played below the figure.
    - ``recompute``: there is no control, but the result depends on the trait.
    """

    buttons: ClassVar[Sequence[ExplorerButton]] = ()
    """The buttons below the figure."""
    notes: ClassVar[Mapping[str, str]] = {}
    """By group of choices, what stands behind its controls."""
    registrations = t.Int(0, help="Number of registrations of the user's own functions since this was made.").tag(
        recompute=True
    )
    _choices: ClassVar[tuple[str, ...]] = ()
    _inputs: ClassVar[tuple[str, ...]] = ()
    _is_made = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # From the classes' dictionaries, in the order of definition, which rows follow: traitlets sorts traits by name.
        tags = {name: one.metadata for part in reversed(cls.__mro__) for name, one in vars(part).items()
                if isinstance(one, t.TraitType)}  # fmt: skip
        # A misspelled tag would leave out a control without a word.
        if unknown := {tag for one in tags.values() for tag in one} - TAGS:
            raise TypeError(f"{cls.__name__}: there is no tag {', '.join(sorted(unknown))}; see Explorer.")
        cls._choices = tuple(name for name, one in tags.items() if "group" in one)
        cls._inputs = (*cls._choices, *(name for name, one in tags.items() if "recompute" in one))

    def __init__(self, **traits: Any):
        # Before the traits get their first values: an observer of them may ask for the result.
        self._kept: tuple[tuple[Any, ...], R] | None = None
        super().__init__(**traits)
        self._is_made = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_made and not name.startswith("_"):
            self._check_assigned(name, value)
        super().__setattr__(name, value)

    # ---- what an explorer defines

    def _compute(self) -> R:
        """Return the result of the present choices; an error becomes a result that tells it."""
        raise NotImplementedError

    def make_drawing(self) -> PlotsDrawing:
        """Return what draws results, in the live figure and on a page."""
        raise NotImplementedError

    def make_figure(self) -> PictureFigure[Any]:
        """Return the live figure of the present choices."""
        # Imported here and below, because `import pathways_nb` loads neither Bokeh nor ipywidgets.
        from pathways_widgets.figures.picture_figure import PictureFigure

        return PictureFigure(self._result, self.make_drawing())

    def scene(self, width: float = 900.0) -> Scene:
        """Return the picture of the present choices as shapes, for a page of so many pixels."""
        return self.make_drawing().still(self._result, width)

    @property
    def drawn(self) -> tuple[Any, ...]:
        """The arguments of the figure's ``draw``: the result, and perhaps where to point."""
        return (self._result,)

    @property
    def summary(self) -> str:
        """One line below the figure."""
        return ""

    @property
    def refusal(self) -> str:
        """Why there is no picture of the present choices; empty if there is one."""
        return str(getattr(self._result, "error", ""))

    @property
    def words(self) -> str:
        """Lines below the player, which follow its steps; empty for none."""
        return ""

    @property
    def tables(self) -> Sequence[tuple[str, Sequence[str]]]:
        """Tables below the figure: the title and the lines of each."""
        return ()

    # ---- what all have

    @classmethod
    def all_choices(cls) -> tuple[str, ...]:
        """Return the names of what can be chosen, in the order of the controls."""
        return cls._choices

    @property
    def choices(self) -> tuple[str, ...]:
        """Names of what can be chosen here, in the order of the controls."""
        return self._choices

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the traits on which the result depends."""
        return self._inputs

    @property
    def _result(self) -> R:
        """The result of the present choices, computed at its first use after a change."""
        chosen = tuple(getattr(self, name) for name in self._inputs)
        if self._kept is None or self._kept[0] != chosen:
            with uncollected():  # a picture is thousands of objects that stay
                self._kept = chosen, self._compute()
        return self._kept[1]

    def registered(self) -> None:
        """Compute again after the user registered a function, perhaps one that is used here."""
        self.registrations += 1

    def _check_assigned(self, name: str, value: Any) -> None:
        """Refuse what traitlets would keep without a word: an attribute that there is none of, a step beyond the last.

        Raises:
            UsageError: there is no such attribute (the nearest is named).
            TraitError: there is no such step.
        """
        if not hasattr(type(self), name) and name not in vars(self):
            known = (*self.choices, *self.trait_names(steps=lambda tag: tag is not None))
            raise UsageError(
                f"{type(self).__name__}: there is no {name!r} to set.{did_you_mean(name, known)} "
                f"Choices: {', '.join(known)}."
            )
        counted_by = self.trait_metadata(name, "steps") if self.has_trait(name) else None
        last = getattr(self, counted_by) if counted_by else 0
        if counted_by and isinstance(value, int) and not 0 <= value <= last:
            raise t.TraitError(f"{name}={shortened(value)}: choose a number from 0 to {last}")

    def savefig(self, path: str | Path, width: str | float = 900) -> None:
        """Write the pictures to a file.

        Args:
            path: file name that ends in ``.svg`` or ``.png``.
            width: of the picture, as for ``Run.savefig``.
        """
        from pathways_widgets.figures.run_still import write_scene

        write_scene(self.scene, path, width)

    def show(self) -> None:
        """Show the controls and the pictures in the current cell."""
        from pathways_widgets.explorers.controls_panel import ControlsPanel

        ControlsPanel(self).display()

    def __repr__(self) -> str:
        return repr(self._result)


def check_choices(where: str, given: Iterable[str], known: Sequence[str], otherwise: str = "") -> None:
    """Require that all names are choices.

    Args:
        where: the function that was called.
        given: names of its arguments.
        known: names of the choices.
        otherwise: how the error ends; by default it lists all choices.

    Raises:
        UsageError: there is no such choice.
    """
    all_known = f"; all: {', '.join(known)}."
    for name in given:
        if name not in known:
            raise UsageError(f"{where}: there is no {name!r} to choose{otherwise or all_known}")


def result_or_error(compute: Callable[[], R], error_result: Callable[[str], R], users_code: str = "") -> R:
    """Return a result, or one that tells why there is none, so that the controls and other pictures stay.

    Args:
        compute: returns the result.
        error_result: returns the result that tells an error.
        users_code: a function of the user that is called, in words. It may raise anything, which is told, too. Empty if
            none is called: then an error that is none of ``pathways_nb.errors`` is a fault of this package, and is
            raised.
    """
    try:
        return compute()
    except PathwaysError as refused:
        return error_result(str(refused))
    except Exception as failed:
        if not users_code:
            raise
        return error_result(f"{users_code} failed: {type(failed).__name__}: {failed}")
