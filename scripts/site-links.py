"""Checks every link between the pages of the site: site-links.py DIR.

Pages of rustdoc are left to rustdoc, which checks them itself; pdoc names members that it shows nowhere.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the targets of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.targets = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.targets.update(value for value in (attributes.get("id"), attributes.get("name")) if value)
        for name in ("href", "src"):
            if attributes.get(name) and tag in ("a", "img", "link", "script"):
                self.links.append(attributes[name])


def main(site):
    pages = {
        path.resolve(): Page(path.read_text())
        for path in site.rglob("*.html")
        if "rust" not in path.relative_to(site).parts and path.name not in ("404.html", "print.html", "toc.html")
    }
    broken, checked = [], 0
    for path, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            checked += 1
            there = (path.parent / unquote(url.path)).resolve() if url.path else path
            found = pages.get(there)
            if there.is_dir():
                there /= "index.html"
            if not there.exists():
                broken.append(f"{path.relative_to(site)}: {link} is not there")
            elif "python" in path.relative_to(site).parts and not url.path:
                continue
            elif url.fragment and found and unquote(url.fragment) not in found.targets:
                broken.append(f"{path.relative_to(site)}: {link}: no such place in that page")
    print(*broken, sep="\n" if broken else "", file=sys.stderr)
    print(f"site: {len(pages)} pages, {checked} links, {len(broken)} broken")
    return bool(broken) or not checked


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
