import { Alert } from "@chakra-ui/react";

/** Sentences about what is wrong or missing, one a line; nothing where there are none. */
export function LinesAlert({
  status,
  title,
  lines,
}: {
  status: "error" | "warning";
  title?: string;
  lines: readonly string[];
}) {
  return (
    lines.length > 0 && (
      <Alert.Root status={status} alignItems="flex-start" size={title ? "md" : "sm"}>
        <Alert.Indicator />
        <Alert.Content>
          {title && <Alert.Title>{title}</Alert.Title>}
          {lines.map((line) => (
            <Alert.Description key={line} overflowWrap="anywhere">
              {line}
            </Alert.Description>
          ))}
        </Alert.Content>
      </Alert.Root>
    )
  );
}
