import { Button, chakra } from "@chakra-ui/react";
import { LuDownload } from "react-icons/lu";

/** A link that saves a report: one HTML file that opens anywhere. */
export function DownloadReport({ href, label = "Download report" }: { href: string; label?: string }) {
  return (
    <Button asChild size="xs" variant="outline" flexShrink={0}>
      <chakra.a href={href} download>
        <LuDownload />
        {label}
      </chakra.a>
    </Button>
  );
}
