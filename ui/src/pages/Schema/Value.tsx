import { chakra } from "@chakra-ui/react";
import type { ReactNode } from "react";

interface Props {
  children: string;
  palette?: string;
  /** Before the value, for what colour says: `+`, `−`. */
  mark?: ReactNode;
}

/** A value of the data, told apart from words: blanks are kept, and an empty one is seen. */
export function Value({ children, palette = "gray", mark }: Props) {
  return (
    <chakra.code
      colorPalette={palette}
      bg="colorPalette.subtle"
      color="colorPalette.fg"
      borderWidth={1}
      borderColor="colorPalette.muted"
      borderRadius="sm"
      px={1.5}
      flexShrink={0}
      fontSize="xs"
      fontFamily="mono"
      whiteSpace="pre"
      maxWidth="xs"
      overflow="hidden"
      textOverflow="ellipsis"
      display="inline-block"
      verticalAlign="middle"
      title={children}
    >
      {mark !== undefined && (
        <chakra.span userSelect="none" fontWeight="bold">
          {mark}{" "}
        </chakra.span>
      )}
      {children === "" ? "(empty)" : children}
    </chakra.code>
  );
}
