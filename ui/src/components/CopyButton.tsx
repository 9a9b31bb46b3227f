import { IconButton } from "@chakra-ui/react";
import { useEffect, useState } from "react";
import { LuCheck, LuCopy } from "react-icons/lu";

const SHOWN_MS = 2_000;

/** Puts a text on the clipboard. */
async function copyText(text: string): Promise<void> {
  if (navigator.clipboard !== undefined) {
    await navigator.clipboard.writeText(text);
    return;
  }
  // Without TLS a browser has no clipboard but for what is selected.
  const area = document.createElement("textarea");
  area.value = text;
  area.style.position = "fixed";
  area.style.opacity = "0";
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) {
    throw new Error("the browser does not allow copying");
  }
}

/** Copies a text, and shows that it has. */
export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [outcome, setOutcome] = useState<"copied" | "refused" | null>(null);
  useEffect(() => {
    const timer = outcome && window.setTimeout(() => setOutcome(null), SHOWN_MS);
    return () => window.clearTimeout(timer ?? undefined);
  }, [outcome]);
  const said = outcome === "copied" ? "Copied" : outcome === "refused" ? "The browser does not allow copying" : label;
  return (
    <IconButton
      size="2xs"
      variant="ghost"
      colorPalette={outcome === "copied" ? "success" : "gray"}
      aria-label={said}
      title={said}
      onClick={(event) => {
        event.stopPropagation();
        copyText(text).then(
          () => setOutcome("copied"),
          () => setOutcome("refused"),
        );
      }}
    >
      {outcome === "copied" ? <LuCheck /> : <LuCopy />}
    </IconButton>
  );
}
