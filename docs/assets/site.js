// Marks tables that are wider than the page, so that the page can say that they scroll.
function markWideTables() {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (!wrap.parentElement.classList.contains("table-frame")) {
      const frame = document.createElement("div");
      frame.className = "table-frame";
      wrap.replaceWith(frame);
      frame.append(wrap);
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
