// Long names in a text end a line after a sign or before a capital letter, short ones and options stay whole.
function breakNames() {
  for (const code of document.querySelectorAll(".md-content :not(pre) > code")) {
    if (code.children.length || code.closest(".doc-signature, .doc-heading")) {
      continue;
    }
    const shown = code.textContent.split(/(?<= )/).flatMap((word) => {
      if (/^-+\w/.test(word) && word.length <= 30) {
        const option = document.createElement("span");
        option.className = "option";
        option.textContent = word;
        return [option, document.createElement("wbr")];
      }
      const parts = /(?<=[_.,=(){}\[\]/:|]|[a-z](?=[A-Z]))(?![_.,=(){}\[\]/:|"'])/;
      return (word.length > 16 ? word.split(parts) : [word]).flatMap((part) => [part, document.createElement("wbr")]);
    });
    code.replaceChildren(...shown.slice(0, -1));  // no break before the margin
  }
}
window.addEventListener("load", breakNames);

// Marks tables that are wider than the page, so that the page can say that they scroll.
function markWideTables() {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (!wrap.parentElement.classList.contains("table-frame")) {
      const frame = document.createElement("div");
      frame.className = "table-frame";
      wrap.replaceWith(frame);
      frame.append(wrap);
    }
    for (const cell of wrap.querySelectorAll("td")) {
      cell.classList.toggle("long-text", cell.textContent.trim().length > 30);
    }
    wrap.parentElement.classList.remove("wide-table");  // it widens cells, so it would stay
    wrap.parentElement.classList.toggle("wide-table", wrap.scrollWidth > wrap.clientWidth + 1);
  }
}
window.addEventListener("load", markWideTables);
window.addEventListener("resize", markWideTables);

// A picture opens in its own size, which a phone can enlarge.
function linkPictures() {
  for (const picture of document.querySelectorAll(".md-content img")) {
    if (!picture.closest("a")) {
      const link = document.createElement("a");
      link.href = picture.src;
      picture.replaceWith(link);
      link.append(picture);
    }
  }
}
window.addEventListener("load", linkPictures);
