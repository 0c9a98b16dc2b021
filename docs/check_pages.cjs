// Looks at the built site in headless Chromium: node docs/check_pages.cjs HTML_FOLDER PICTURES_FOLDER
// Every page, at desktop and phone width, light and dark: axe finds nothing, nothing is wider than the window,
// nothing comes from the network. Saves pictures of SHOWN, and checks that a search from the folder finds a page.
const fs = require("fs");
const os = require("os");
const path = require("path");
const { pathToFileURL } = require("url");
const puppeteer = require("puppeteer-core");
const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const SHOWN = ["index", "tour", "infeasible", "method", "auto_gallery/index", "api/training"];
const WIDTHS = [[1280, 900], [390, 844]];
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"];

function pages(folder) {
  return fs.readdirSync(folder, { recursive: true })
    .filter((name) => name.endsWith(".html") && !/^(_modules|_static)/.test(name))
    .map((name) => name.slice(0, -".html".length));
}

async function problems(browser, html, name, [width, height], scheme, pictures) {
  const found = [];
  const page = await browser.newPage();
  await page.setViewport({ width, height, isMobile: width < 500 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  page.on("request", (request) => {
    if (/^https?:/.test(request.url())) found.push(`network: ${request.url()}`);
  });
  page.on("pageerror", (error) => found.push(`script: ${error.message}`));
  await page.goto(pathToFileURL(path.resolve(html, `${name}.html`)).href, { waitUntil: "load" });
  const window_ = () => document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const excess = await page.evaluate(window_);
  if (excess > 0) found.push(`${excess} pixels wider than the window`);
  if (SHOWN.includes(name)) {
    const picture = `${name.replace("/", "_")}_${width}_${scheme}.png`;
    await page.screenshot({ path: path.join(pictures, picture) });
  }
  await page.evaluate(axe);
  const result = await page.evaluate((rules) => axe.run(document, { runOnly: rules }), RULES);
  for (const { id, nodes } of result.violations) found.push(`${id}: ${nodes[0].html.slice(0, 120)}`);
  await page.close();
  return found.map((text) => `${name}, ${width} ${scheme}: ${text}`);
}

async function search(browser, html, words) {
  const page = await browser.newPage();
  await page.goto(`${pathToFileURL(path.resolve(html, "search.html")).href}?q=${words}`);
  await page.waitForSelector("#search-results li a", { timeout: 20000 });
  const first = await page.$eval("#search-results li a", (link) => link.textContent);
  console.log(`search for ${words}: ${first}`);
}

(async () => {
  const [html, pictures] = process.argv.slice(2);
  fs.mkdirSync(pictures, { recursive: true });
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), "pages-"));
  const browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
    userDataDir: profile,
    args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
  });
  const found = [];
  let count = 0;
  for (const name of pages(html))
    for (const size of WIDTHS)
      for (const scheme of ["light", "dark"]) {
        found.push(...(await problems(browser, html, name, size, scheme, pictures)));
        count += 1;
      }
  await search(browser, html, "conflicting");
  await browser.close();
  fs.rmSync(profile, { recursive: true, force: true });
  console.log(found.join("\n") || `nothing found in ${count} views`);
  process.exit(found.length ? 1 : 0);
})();
