/** Colours of text whose own tokens are too pale on white: WCAG 2.2 (1.4.3) asks for a contrast of 4.5 to 1. */

import type { BoxProps } from "@chakra-ui/react";

export type Color = BoxProps["color"];

export const ERROR = { base: "failed.fg", _dark: "fg.error" };
export const WARNING = { base: "warning.fg", _dark: "fg.warning" };
