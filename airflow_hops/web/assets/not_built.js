// Stands for the pages where they have not been built: says so, and how to.
(() => {
  const { createElement: element } = globalThis.React;
  const { Alert, Box, Code } = globalThis.ChakraUI;
  const say = (...parts) => element(Alert.Description, null, ...parts);
  globalThis.AirflowPlugin = () =>
    element(
      Box,
      { p: 6 },
      element(
        Alert.Root,
        { status: "warning" },
        element(Alert.Indicator),
        element(
          Alert.Content,
          null,
          element(Alert.Title, null, "The pages of airflow-hops have not been built"),
          say(
            "In a checkout, install Node.js 20.19 or newer with npm, run ",
            element(Code, null, "make ui"),
            ", and load this page again. A wheel of airflow-hops has them built.",
          ),
        ),
      ),
    );
})();
