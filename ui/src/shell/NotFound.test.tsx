import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { renderToStaticMarkup } from "react-dom/server";
import { MemoryRouter } from "react-router-dom";
import { NotFound } from "src/shell/NotFound";
import { expect, test } from "vitest";

/** The addresses that an unknown page links to. */
function linksOf(address: string): string[] {
  const html = renderToStaticMarkup(
    <ChakraProvider value={defaultSystem}>
      <MemoryRouter initialEntries={[address]}>
        <NotFound />
      </MemoryRouter>
    </ChakraProvider>,
  );
  expect(html).toContain("There is no page /plugin/hops/nothing");
  expect(html).not.toContain("above");
  return [...html.matchAll(/href="([^"]*)"/g)].map(([, href]) => String(href));
}

test("an unknown page leads to all pipelines", () => {
  expect(linksOf("/plugin/hops/nothing")).toEqual(["/plugin/hops"]);
});

test("an unknown page of a pipeline leads to its overview, too", () => {
  expect(linksOf("/plugin/hops/nothing?dag=churn")).toEqual(["/plugin/hops/overview?dag=churn", "/plugin/hops"]);
});
