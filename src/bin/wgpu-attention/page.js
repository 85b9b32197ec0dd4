// Names the query, the key and the probability under the pointer, read back from the picture's own pixels.
const palette = document.body.dataset.palette.match(/.{6}/g);
const readout = document.getElementById("readout");
function pixels(img) {
  if (!img.pixels) {
    const canvas = document.createElement("canvas");
    canvas.width = img.naturalWidth;
    canvas.height = img.naturalHeight;
    const context = canvas.getContext("2d");
    context.drawImage(img, 0, 0);
    img.pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
  }
  return img.pixels;
}
for (const img of document.querySelectorAll(".map")) {
  const tokens = JSON.parse(img.closest("section").dataset.tokens);
  const name = (n) => (tokens[n] && tokens[n] !== String(n) ? n + " (" + tokens[n] + ")" : n);
  img.addEventListener("pointermove", (event) => {
    const box = img.getBoundingClientRect();
    const at = (where, from, size, count) => Math.min(count - 1, Math.max(0, Math.floor(((where - from) / size) * count)));
    const key = at(event.clientX, box.left, box.width, img.naturalWidth);
    const query = at(event.clientY, box.top, box.height, img.naturalHeight);
    const data = pixels(img);
    const start = 4 * (query * img.naturalWidth + key);
    let text = "not visible";
    if (data[start + 3] > 0) {
      const hex = [0, 1, 2].map((c) => data[start + c].toString(16).padStart(2, "0")).join("");
      const level = palette.indexOf(hex, 1);
      text = level < 1 ? "" : "p ≈ " + (((level - 1) / 254) ** 2).toPrecision(2);
    }
    readout.textContent = "query " + name(query) + " → key " + name(key) + "  " + text;
  });
  img.addEventListener("pointerleave", () => (readout.textContent = ""));
}
