"""A layer of the picture in a browser, which alters what is there instead of drawing it anew.

Shapes that are thrown away twice a second would fill the browser's memory with what is left.
"""

from nicegui import ui

from patchlight.cli.dashboard.shapes import Shape, Shapes


class Layer(ui.element, component="layer.js"):
    """Shows shapes in an ``svg``; what users wrote is text in them, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self._number, self._size, self._drawn = 0, "", Shapes()
        self.on("missed", self._show_all)

    def show(self, size: str, drawn: Shapes, *, anew: bool = False) -> None:
        """Show these from now on, under that ``viewBox``; those that differ are sent.

        What is new comes to lie on top of what is there. ``anew``: all is drawn again, in order.
        """
        before, anew = self._drawn, anew or not self._number
        self._size, self._drawn = size, drawn
        differ: dict[str, Shape | None] = {**drawn}
        if not anew:
            differ = {name: shape for name, shape in drawn.items() if before.get(name) != shape}
            differ |= dict.fromkeys(before.keys() - drawn.keys())
        if differ or anew:
            # Not as the call of a method, of which NiceGUI makes a script for each update.
            self._number += 1
            self.props["differ"] = [self._number, anew, size, differ]

    def _show_all(self) -> None:
        """A browser missed an update, as of several that wait for it the last alone is sent."""
        self.show(self._size, self._drawn, anew=True)
