// Drawing on canvases: the heatmap, the bars beside it, and the curve of a row. Nothing here knows where numbers come from.

import { PALETTE, css, level, theme } from "./colour.js";

/** A canvas with as many pixels as the screen has, measured in CSS pixels. */
export function sheet(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const ratio = globalThis.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return { context, width, height };
}

/** One pixel for each pair; hidden ones are transparent. */
export function heatmap(canvas, weights, seen, rows, columns) {
  if (canvas.width !== columns || canvas.height !== rows) [canvas.width, canvas.height] = [columns, rows];
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let n = 0; n < rows * columns; n++) {
    const at = 3 * level(weights[n]);
    image.data[4 * n] = PALETTE[at];
    image.data[4 * n + 1] = PALETTE[at + 1];
    image.data[4 * n + 2] = PALETTE[at + 2];
    image.data[4 * n + 3] = seen(n) ? 255 : 0;
  }
  context.putImageData(image, 0, 0);
}

/** One bar for each row, as high as the heatmap's row: its entropy as a share of the most there can be. */
export function bars(canvas, values, most, chosen) {
  const { context, width, height } = sheet(canvas);
  const colours = theme();
  const step = height / values.length;
  values.forEach((value, n) => {
    context.fillStyle = n === chosen ? colours.mark : colours.bar;
    const length = most > 0 ? (value / most) * (width - 2) : 0;
    context.fillRect(0, n * step + (step > 3 ? 0.5 : 0), Math.max(0.5, length), Math.max(0.6, step - (step > 3 ? 1 : 0)));
  });
  context.strokeStyle = colours.line;
  context.strokeRect(0.5, 0.5, width - 1, height - 1);
}

export function legend(canvas) {
  const context = canvas.getContext("2d");
  for (let n = 0; n < 256; n++) {
    context.fillStyle = css((n / 255) ** 2);
    context.fillRect(n, 0, 1, 1);
  }
}

/** Round steps that cut a range into about `count` parts. */
export function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, n) => +((first + n) * step).toPrecision(12));
}

/** Dots and a line over axes. `points`: [x, y, marked]; `line`: a function of x. */
export function curve(canvas, points, line, [low, high]) {
  const { context, width, height } = sheet(canvas);
  const colours = theme();
  const [left, right, top, bottom] = [40, width - 8, 8, height - 22];
  const most = Math.max(1e-3, ...points.map((p) => p[1])) * 1.08;
  const x = (v) => left + ((v - low) / (high - low || 1)) * (right - left);
  const y = (v) => bottom - (v / most) * (bottom - top);
  context.strokeStyle = colours.grid;
  context.fillStyle = colours.soft;
  context.lineWidth = 1;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const v of ticks(0, most, 4)) {
    context.beginPath();
    context.moveTo(left, y(v));
    context.lineTo(right, y(v));
    context.stroke();
    context.fillText(String(v), left - 5, y(v));
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const v of ticks(low, high, Math.max(2, width / 90))) {
    context.beginPath();
    context.moveTo(x(v), top);
    context.lineTo(x(v), bottom);
    context.stroke();
    context.fillText(String(v), x(v), bottom + 5);
  }
  context.textAlign = "left";
  context.fillText("weight", left + 6, top + 2);
  context.textAlign = "right";
  context.textBaseline = "bottom";
  context.fillText("score", right - 6, bottom - 6);
  context.save();
  context.beginPath();
  context.rect(left, top, right - left, bottom - top + 1);
  context.clip();
  context.strokeStyle = colours.bar;
  context.lineWidth = 2;
  context.beginPath();
  for (let n = 0; n <= 200; n++) {
    const v = low + (n / 200) * (high - low);
    context.lineTo(x(v), Math.max(top - 50, y(line(v))));
  }
  context.stroke();
  context.restore();
  for (const marked of [false, true]) {
    context.fillStyle = marked ? colours.mark : colours.fore;
    for (const [a, b, is] of points) {
      if (Boolean(is) !== marked) continue;
      context.beginPath();
      context.arc(x(a), y(b), marked ? 5 : 2.5, 0, 2 * Math.PI);
      context.fill();
    }
  }
}
