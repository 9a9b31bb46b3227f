import { Button, HStack, Text, VisuallyHidden } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { LuArrowUpToLine, LuReplace, LuSplit, LuUndo2, LuUsers } from "react-icons/lu";
import { Tooltip } from "src/components/Tooltip";
import { impossible } from "src/pages/Models/impossible";
import { OwnersDialog } from "src/pages/Models/OwnersDialog";
import { PromoteDialog } from "src/pages/Models/PromoteDialog";
import { liveOptions, type ModelDetail, useMinutes } from "src/pages/Models/queries";
import { ReplaceDialog } from "src/pages/Models/ReplaceDialog";
import { RollBackDialog } from "src/pages/Models/RollBackDialog";
import { TrafficDialog } from "src/pages/Models/TrafficDialog";

const ACTIONS = [
  { name: "promote", label: "Promote", icon: LuArrowUpToLine, Dialog: PromoteDialog },
  { name: "traffic", label: "Set traffic", icon: LuSplit, Dialog: TrafficDialog },
  { name: "rollBack", label: "Roll back", icon: LuUndo2, Dialog: RollBackDialog },
  { name: "replace", label: "Replace champion", icon: LuReplace, Dialog: ReplaceDialog },
  { name: "owners", label: "Change owners", icon: LuUsers, Dialog: OwnersDialog },
] as const;

/** What may be decided about a model, by those who may start the pipeline's runs. What cannot be done now says why. */
export function Actions({ dagId, detail }: { dagId: string; detail: ModelDetail }) {
  const [open, setOpen] = useState<string | null>(null);
  const [minutes] = useMinutes();
  const live = useQuery(liveOptions(dagId, detail.name, minutes));
  if (!detail.may_change) {
    return (
      <Text fontSize="sm" color="fg.muted">
        To change which version serves, you need permission to trigger a DAG that owns and deploys the model.
      </Text>
    );
  }
  return (
    <HStack gap={2} wrap="wrap">
      {ACTIONS.map(({ name, label, icon, Dialog }) => (
        <span key={name}>
          <Action
            label={label}
            icon={icon}
            impossible={impossible(name, detail, live.data?.problem != null)}
            onClick={() => setOpen(name)}
          />
          {open === name && <Dialog dagId={dagId} detail={detail} onClose={() => setOpen(null)} />}
        </span>
      ))}
    </HStack>
  );
}

function Action({
  label,
  icon: Icon,
  impossible: why,
  onClick,
}: {
  label: string;
  icon: (typeof ACTIONS)[number]["icon"];
  /** Why it cannot be done; null where it can. */
  impossible: string | null;
  onClick: () => void;
}) {
  const button = (
    // Not `disabled`: what cannot be focused says nothing to the keyboard and to screen readers.
    <Button size="sm" variant="outline" aria-disabled={why !== null} onClick={why === null ? onClick : undefined}>
      <Icon />
      {label}
      {why !== null && <VisuallyHidden> ({why})</VisuallyHidden>}
    </Button>
  );
  return why === null ? button : <Tooltip content={why}>{button}</Tooltip>;
}
