import { EmptyState } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { LuInbox } from "react-icons/lu";

/** Nothing to show: says why, and how to start (children: a link, a command, a button). */
export function Empty({ title, icon, children }: { title: string; icon?: ReactNode; children?: ReactNode }) {
  return (
    <EmptyState.Root>
      <EmptyState.Content>
        <EmptyState.Indicator>{icon ?? <LuInbox />}</EmptyState.Indicator>
        <EmptyState.Title asChild>
          <h2>{title}</h2>
        </EmptyState.Title>
        {children !== undefined && (
          <EmptyState.Description asChild width="full" maxW="2xl" textAlign="center">
            <div>{children}</div>
          </EmptyState.Description>
        )}
      </EmptyState.Content>
    </EmptyState.Root>
  );
}
