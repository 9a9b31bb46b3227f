import { Alert, Button, Stack } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link } from "react-router-dom";
import type { Schemas } from "src/api/client";
import type { Overview } from "src/api/pipelines";
import { Time } from "src/components";
import { formatList } from "src/format";
import { airflowTaskPath, formatArtifact, schemaPath } from "src/routes";

/** What waits for a person: questions of tasks, and changes of the schema that are proposed. */
export function Waiting({ overview: { waiting, proposed } }: { overview: Overview }) {
  if (waiting.length + proposed.length === 0) {
    return null;
  }
  return (
    <Stack as="section" aria-label="Waiting for a person" gap={2}>
      {waiting.map((question) => (
        <Asked key={formatArtifact({ ...question.task, kind: "question" })} question={question} />
      ))}
      {proposed.map(({ validation, at, features, features_total: total }) => (
        <Item
          key={formatArtifact(validation)}
          status="info"
          title="A schema change is proposed"
          to={schemaPath(validation.dag_id, { artifact: validation })}
          action="Review"
        >
          Task {validation.task_id} found anomalies <Time at={at} />:{" "}
          {formatList(
            features.map((name) => name || "the data set as a whole"),
            total,
          )}
          .
        </Item>
      ))}
    </Stack>
  );
}

function Asked({ question }: { question: Schemas["Question"] }) {
  const { task, stage } = question;
  const validates = stage === "validation";
  const to = validates
    ? schemaPath(task.dag_id, { artifact: { ...task, kind: "anomalies" } })
    : `${airflowTaskPath(task)}/required_actions`;
  return (
    <Item status="warning" title={question.subject} to={to} action={question.may_answer ? "Answer" : "Review"}>
      Task {task.task_id} asked <Time at={question.asked_at} />
      {question.deadline && (
        <>
          {"; without an answer, the choice is "}
          {question.default} <Time at={question.deadline} />
        </>
      )}
      .{question.assigned_to.length > 0 && ` Assigned to ${question.assigned_to.join(", ")}.`}
    </Item>
  );
}

interface Props {
  status: "warning" | "info";
  title: string;
  to: string;
  action: string;
  children: ReactNode;
}

function Item({ status, title, to, action, children }: Props) {
  return (
    <Alert.Root status={status} alignItems="center" flexWrap={{ base: "wrap", md: "nowrap" }}>
      <Alert.Indicator />
      <Alert.Content flexBasis={{ base: "calc(100% - 3rem)", md: "auto" }}>
        <Alert.Title>{title}</Alert.Title>
        <Alert.Description wordBreak="break-word">{children}</Alert.Description>
      </Alert.Content>
      <Button size="sm" asChild>
        <Link to={to}>{action}</Link>
      </Button>
    </Alert.Root>
  );
}
