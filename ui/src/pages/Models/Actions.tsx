import { Button, HStack, Text } from "@chakra-ui/react";
import { useState } from "react";
import { LuArrowUpToLine, LuSplit, LuUndo2 } from "react-icons/lu";
import { Tooltip } from "src/components/Tooltip";
import { formerChampions } from "src/pages/Models/champions";
import { PromoteDialog } from "src/pages/Models/PromoteDialog";
import type { ModelDetail } from "src/pages/Models/queries";
import { RollBackDialog } from "src/pages/Models/RollBackDialog";
import { TrafficDialog } from "src/pages/Models/TrafficDialog";

const ACTIONS = [
  { name: "promote", label: "Promote", icon: LuArrowUpToLine, Dialog: PromoteDialog },
  { name: "traffic", label: "Set traffic", icon: LuSplit, Dialog: TrafficDialog },
  { name: "rollBack", label: "Roll back", icon: LuUndo2, Dialog: RollBackDialog },
] as const;

/** What may be decided about a model, by those who may start the pipeline's runs. */
export function Actions({ dagId, detail }: { dagId: string; detail: ModelDetail }) {
  const [open, setOpen] = useState<string | null>(null);
  if (!detail.may_change) {
    return (
      <Text fontSize="sm" color="fg.muted">
        To change what serves takes a DAG that deploys the model, and the right to trigger it.
      </Text>
    );
  }
  return (
    <HStack gap={2}>
      {ACTIONS.map(({ name, label, icon: Icon, Dialog }) => {
        const why = impossible(name, detail);
        const button = (
          <Button size="sm" variant="outline" disabled={why !== null} onClick={() => setOpen(name)}>
            <Icon />
            {label}
          </Button>
        );
        return (
          <span key={name}>
            {why === null ? (
              button
            ) : (
              <Tooltip content={why}>
                <span>{button}</span>
              </Tooltip>
            )}
            {open === name && <Dialog dagId={dagId} detail={detail} onClose={() => setOpen(null)} />}
          </span>
        );
      })}
    </HStack>
  );
}

/** Why something cannot be decided now; null where it can. */
function impossible(action: string, { champion, challenger, deployed, decisions }: ModelDetail): string | null {
  if (!champion) {
    return "No version serves; a run of the pipeline deploys one.";
  }
  if (action === "promote" && !deployed.some((version) => version !== champion.version)) {
    return "There is no other version.";
  }
  if (action === "traffic" && !challenger) {
    return "Traffic is shared between champion and challenger, and there is no challenger: a run of the pipeline deploys one.";
  }
  if (action === "rollBack" && !challenger && formerChampions(decisions, champion.version).length === 0) {
    return "There was no champion before this one.";
  }
  return null;
}
