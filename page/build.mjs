// Bundles the page (`node build.mjs page`) or its unit tests (`node build.mjs tests`).

import { readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const DIST = process.env.HEAPBPF_PAGE_DIST ?? "../profiler/crates/report/src/html/dist";
const BROWSERS = ["chrome92", "firefox113", "safari16.4"];
const LIBRARIES = ["preact", "uplot"];

async function page() {
  await build({
    entryPoints: { page: "src/main.tsx" },
    outdir: DIST,
    bundle: true,
    minify: true,
    charset: "ascii",
    format: "iife",
    target: BROWSERS,
    legalComments: "none",
    jsx: "automatic",
    jsxImportSource: "preact",
    define: { "process.env.NODE_ENV": '"production"' },
  });
  const licence = (name) => {
    const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
    return `${name} ${version}\n\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim()}\n`;
  };
  writeFileSync(`${DIST}/LICENCES`, LIBRARIES.map(licence).join("\n"));
}

async function tests() {
  rmSync("build/test", { recursive: true, force: true });
  await build({
    entryPoints: readdirSync("test").filter((name) => /\.test\.tsx?$/.test(name)).map((name) => `test/${name}`),
    outdir: "build/test",
    outExtension: { ".js": ".mjs" },
    bundle: true,
    platform: "node",
    format: "esm",
    target: "node20",
    packages: "external",
    sourcemap: "inline",
    jsx: "automatic",
    jsxImportSource: "preact",
  });
}

await { page, tests }[process.argv[2]]();
