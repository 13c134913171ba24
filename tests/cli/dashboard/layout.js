// What is wrong with the layout of a page: what is cut, overlaps, or scrolls sideways.
() => {
  const wrong = [];
  const name = (each) => `${each.tagName} .${each.className?.baseVal ?? each.className}`;
  const visible = (box) => box.width > 1 && box.height > 1;
  const root = document.scrollingElement;
  if (root.scrollWidth > innerWidth) wrong.push(`the page scrolls: ${root.scrollWidth}`);
  for (const each of document.querySelectorAll("body *")) {
    const { overflowX, clip } = getComputedStyle(each);
    const cuts = overflowX !== "visible" && each.clientWidth > 1 && clip === "auto";
    if (cuts && each.scrollWidth > each.clientWidth + 1)
      wrong.push(`cut: ${name(each)} ${each.scrollWidth} > ${each.clientWidth}`);
  }
  const pairs = (boxes, allowed, what) => {
    boxes.forEach(([a, first], n) =>
      boxes.slice(n + 1).forEach(([b, second]) => {
        const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (width > allowed && height > allowed && !first.contains?.(second))
          wrong.push(`${what} overlap: ${first.data ?? name(first)} | ${second.data ?? name(second)}`);
      }),
    );
  };
  const cards = document.querySelectorAll("header, .pl-status, .pl-scroll, .q-card, .q-table__card");
  const boxes = [...cards].map((each) => [each.getBoundingClientRect(), each]);
  pairs(boxes.filter(([box]) => visible(box)), 0, "cards");
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const words = [];
  while (texts.nextNode()) {
    const node = texts.currentNode;
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest("script, style, title, noscript, .q-icon")) continue;
    if (!parent.checkVisibility({ opacityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of [...range.getClientRects()].filter(visible)) {
      words.push([box, node]);
      if (box.left < 0 || box.right > innerWidth + 1) wrong.push(`outside: ${node.data}`);
    }
  }
  if (words.length < 20) wrong.push(`only ${words.length} texts are there`);
  // The boxes of lines are higher than their letters.
  pairs(words, 4, "texts");
  return wrong;
};
