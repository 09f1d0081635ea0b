import javascript from "@eslint/js";
import hooks from "eslint-plugin-react-hooks";
import typescript from "typescript-eslint";

export default typescript.config(
  { ignores: ["build/", "node_modules/", "build.mjs", "eslint.config.js"] },
  javascript.configs.recommended,
  typescript.configs.strictTypeChecked,
  typescript.configs.stylisticTypeChecked,
  { languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } } },
  {
    plugins: { "react-hooks": hooks },
    rules: {
      ...hooks.configs.recommended.rules,
      eqeqeq: "error",
      // Names of targets are text, never markup.
      "no-restricted-properties": [
        "error",
        { property: "innerHTML", message: "target names are never parsed as markup" },
        { property: "outerHTML", message: "target names are never parsed as markup" },
        { property: "insertAdjacentHTML", message: "target names are never parsed as markup" },
      ],
      "no-restricted-syntax": [
        "error",
        { selector: "JSXAttribute[name.name='dangerouslySetInnerHTML']", message: "target names are never parsed as markup" },
      ],
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      // A bound of a loop does not prove an index to the compiler; see `at` in src/data/columns.ts for where it is checked.
      "@typescript-eslint/no-non-null-assertion": "error",
      // node's test() returns a promise that the runner awaits.
      "@typescript-eslint/no-floating-promises": ["error", { allowForKnownSafeCalls: [{ from: "package", name: ["test", "describe"], package: "node:test" }] }],
    },
  },
);
