"""Reads a page as a browser would."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Collects what a browser would see: tags, their addresses, and the text.

    Attributes
    ----------
    tags, addresses : list[str]
        In the order of the page.
    elements : list[tuple[str, dict[str, str]]]
        Tags with their attributes.
    open : list[str]
        Tags that were not closed.
    text : str
        Without scripts and style sheets.
    """

    VOID = frozenset({"meta", "input", "br", "wbr", "link", "img"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data
