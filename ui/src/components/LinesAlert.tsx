import { Notice } from "src/components/Notice";

interface Props {
  status?: "error" | "warning";
  title?: string;
  lines: readonly (string | false | null | undefined)[];
}

/** Sentences about what is wrong or missing, one a line; nothing where there are none. */
export function LinesAlert({ status = "warning", title, lines }: Props) {
  const known = lines.filter((line) => !!line);
  return (
    known.length > 0 && (
      <Notice status={status} alignItems="flex-start" size={title ? "md" : "sm"} title={title}>
        {known.map((line) => (
          <div key={`${line}`} style={{ overflowWrap: "anywhere" }}>
            {line}
          </div>
        ))}
      </Notice>
    )
  );
}
