"""A layer of the picture in a browser, which alters what is there instead of drawing it anew.

Shapes that are thrown away twice a second would fill the browser's memory with what is left.
"""

from nicegui import ui

from patchlight.cli.dashboard.picture import Shape, Shapes


class Layer(ui.element, component="layer.js"):
    """Shows shapes in an ``svg``; what users wrote is text in them, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self._number, self._drawn = 0, Shapes()
        self.on("missed", self._forget)

    def show(self, size: str, drawn: Shapes) -> None:
        """Show these from now on, under that ``viewBox``; those that differ are sent."""
        before, self._drawn = self._drawn, drawn
        differ: dict[str, Shape | None] = dict.fromkeys(before.keys() - drawn.keys())
        differ |= {name: shape for name, shape in drawn.items() if before.get(name) != shape}
        if differ:
            # Not as the call of a method, of which NiceGUI makes a script for each update.
            self.props["differ"] = [self._number, size, differ]
            self._number += 1

    def _forget(self) -> None:
        """Send everything next: number 0 begins anew. A browser that missed one says so."""
        self._number, self._drawn = 0, Shapes()
