import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import type { BuildEnvironmentOptions, Plugin } from "vite";
import { defineConfig } from "vitest/config";

const SOURCES = resolve(import.meta.dirname, "src");
const OUTPUT = resolve(import.meta.dirname, "../airflow_hops/web/static");
const BUNDLE = "hops.umd.js";
const EXTENSIONS = readdirSync(resolve(SOURCES, "extensions"));

/** Writes the bundle's fingerprint, by which browsers may keep it, beside it. */
function delivery(): Plugin {
  return {
    name: "hops-delivery",
    writeBundle(_, files) {
      if (BUNDLE in files) {
        const bundle = readFileSync(resolve(OUTPUT, BUNDLE));
        writeFileSync(resolve(OUTPUT, "fingerprint"), createHash("sha256").update(bundle).digest("hex").slice(0, 16));
      }
    },
  };
}

/** What the host, and for an extension these pages, hold ready: React, router and design system are the host's. */
const GLOBALS: Record<string, string> = {
  react: "React",
  "react-dom": "ReactDOM",
  "react-router-dom": "ReactRouterDOM",
  "react/jsx-runtime": "ReactJSXRuntime",
  "@chakra-ui/react": "ChakraUI",
  "@emotion/react": "EmotionReact",
  "airflow-hops": "AirflowHops",
};

/** A bundle: of these pages, or of those of an extension, which have in common what `src/shared.ts` names. */
function bundle(entry: string, fileName: string, extension = ""): BuildEnvironmentOptions {
  const own = `src/extensions/${extension}/`;
  return {
    outDir: OUTPUT,
    emptyOutDir: false,
    license: extension ? false : { fileName: "licenses.md" },
    target: "es2022",
    reportCompressedSize: false,
    chunkSizeWarningLimit: 2000,
    lib: { entry: resolve(SOURCES, entry), name: "AirflowPlugin", formats: ["umd"], fileName: () => fileName },
    rolldownOptions: {
      checks: { moduleLevelDirective: false },
      external(id) {
        const isForeign = extension ? !id.startsWith(own) : id === "airflow-hops" || id.startsWith("src/extensions/");
        if (id.startsWith("src/") && isForeign) {
          throw new Error(`${entry} may not import ${id}: extensions and pages share what src/shared.ts names`);
        }
        return id in GLOBALS;
      },
      output: { exports: "default", globals: GLOBALS },
    },
  };
}

export default defineConfig({
  plugins: [delivery()],
  resolve: { alias: { src: SOURCES, "airflow-hops": resolve(SOURCES, "shared.ts") } },
  define: { "process.env.NODE_ENV": JSON.stringify("production") },
  // The tests are of functions that keep no state: they may share their imports.
  test: { include: ["src/**/*.test.{ts,tsx}"], pool: "threads", isolate: false },
  builder: {},
  environments: {
    client: { build: bundle("main.tsx", BUNDLE) },
    ...Object.fromEntries(
      EXTENSIONS.map((name) => [
        name,
        { consumer: "client", build: bundle(`extensions/${name}/main.tsx`, `${name}.umd.js`, name) },
      ]),
    ),
  },
});
