"""What can be dragged on a page with a mouse, a pen or a finger."""

from collections.abc import Awaitable, Callable

from nicegui import events, ui


class Dragging(ui.element, component="dragging.js"):
    """Shapes in it that have ``data-drag`` can be dropped on those that have ``data-drop``.

    ``dropped`` is told from which, at which it was (empty if at none) and to which (empty: out of
    it all, which only what was at one can be). ``data-name``, ``data-to`` and ``data-out`` are
    what is said of each meanwhile.
    """

    def __init__(self, dropped: Callable[[str, str, str], Awaitable[None]]) -> None:
        super().__init__()

        async def on_dropped(event: events.GenericEventArguments) -> None:
            await dropped(*(str(event.args[key]) for key in ("from", "at", "to")))

        self.on("dropped", on_dropped)
