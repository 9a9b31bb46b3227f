import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

const OUTPUT = resolve(import.meta.dirname, "../airflow_hops/web/static");
const BUNDLE = "hops.umd.js";

/** Writes the bundle's fingerprint, by which browsers may keep it, beside it. */
function delivery(): Plugin {
  return {
    name: "hops-delivery",
    writeBundle() {
      const bundle = readFileSync(resolve(OUTPUT, BUNDLE));
      writeFileSync(resolve(OUTPUT, "fingerprint"), createHash("sha256").update(bundle).digest("hex").slice(0, 16));
    },
  };
}

export default defineConfig({
  plugins: [delivery()],
  resolve: { alias: { src: resolve(import.meta.dirname, "src") } },
  define: { "process.env.NODE_ENV": JSON.stringify("production") },
  // The tests are of functions that keep no state: they may share their imports.
  test: { include: ["src/**/*.test.{ts,tsx}"], pool: "threads", isolate: false },
  build: {
    outDir: OUTPUT,
    emptyOutDir: false,
    license: { fileName: "licenses.md" },
    target: "es2022",
    reportCompressedSize: false,
    chunkSizeWarningLimit: 2000,
    lib: {
      entry: resolve(import.meta.dirname, "src/main.tsx"),
      name: "AirflowPlugin",
      formats: ["umd"],
      fileName: () => BUNDLE,
    },
    rolldownOptions: {
      // What the host holds ready for its plugins: they share its React, its router and its design system.
      checks: { moduleLevelDirective: false },
      external: ["react", "react-dom", "react-router-dom", "react/jsx-runtime", "@chakra-ui/react", "@emotion/react"],
      output: {
        exports: "default",
        globals: {
          react: "React",
          "react-dom": "ReactDOM",
          "react-router-dom": "ReactRouterDOM",
          "react/jsx-runtime": "ReactJSXRuntime",
          "@chakra-ui/react": "ChakraUI",
          "@emotion/react": "EmotionReact",
        },
      },
    },
  },
});
