"""The calculator as a verl tool. It fails as a real one does: by raising."""

from __future__ import annotations

from typing import Any

from tasks import TOOL, calculate
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse


class CalculatorTool(BaseTool):
    """Computes `a op b`; division by zero and a missing argument raise."""

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return OpenAIFunctionToolSchema.model_validate(TOOL)

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        result = calculate(parameters["a"], parameters["b"], parameters["op"])
        return ToolResponse(text=result), 0.0, {}
