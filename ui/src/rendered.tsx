import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import type { ReactElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { MemoryRouter } from "react-router-dom";

/** The markup of an element at an address, for tests: without styles. */
export function rendered(element: ReactElement, address = "/"): string {
  const html = renderToStaticMarkup(
    <ChakraProvider value={defaultSystem}>
      <MemoryRouter initialEntries={[address]}>{element}</MemoryRouter>
    </ChakraProvider>,
  );
  return html.replaceAll(/<style.*?<\/style>/gs, "");
}

/** Where its links lead. */
export const linksOf = (html: string): string[] =>
  [...html.matchAll(/href="([^"]*)"/g)].map(([, href]) => String(href));
